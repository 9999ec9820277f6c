package attach_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/cni"
	"github.com/fastiov/fastiov/node-agent/cni/attach"
	"github.com/fastiov/fastiov/node-agent/cni/cnitest"
	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// A MAC comes from the configuration, from CNI_ARGS or from runtimeConfig; the later counts more.
// Arguments for others are left to them.
func TestWhoNamesTheMAC(t *testing.T) {
	h := newHost(t)
	for _, c := range []struct{ conf, args, runtime, want string }{
		{"02:00:00:00:00:01", "", "", "02:00:00:00:00:01"},
		{"02:00:00:00:00:01", "02:00:00:00:00:02", "", "02:00:00:00:00:02"},
		{"", "CA:FE:C0:FF:EE:00", "", "ca:fe:c0:ff:ee:00"},
		{"02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03", "02:00:00:00:00:03"},
	} {
		box := newContainer(t, "c")
		list := h.list(t, "1.0.0", fmt.Sprintf(`"driver":"vfio","capabilities":{"mac":true},
			"mac":%q`, c.conf))
		box.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "web"}}
		if c.args != "" {
			box.Args = append(box.Args, [2]string{"MAC", c.args})
		}
		if c.runtime != "" {
			box.CapabilityArgs = map[string]any{"mac": c.runtime}
		}
		if got := h.add(t, list, box).Interfaces[0].Mac; got != c.want {
			t.Errorf("%+v gave %s", c, got)
		}
		h.del(t, list, box)
		h.idle(t)
		box.end()
	}
	box := newContainer(t, "c")
	box.Args = [][2]string{{"MAC", "nonsense"}}
	_, err := h.runtime.AddNetworkList(t.Context(), h.list(t, "1.0.0", ""), &box.RuntimeConf)
	refusedWith(t, err, types.ErrInvalidEnvironmentVariables, "CNI_ARGS: MAC: \"nonsense\"")
}

// refusedWith checks a plugin's error.
func refusedWith(t *testing.T, err error, code uint, why string) {
	t.Helper()
	var refused *types.Error
	if !errors.As(err, &refused) || refused.Code != code ||
		!strings.Contains(err.Error(), why) {
		t.Errorf("the error is %v, not %d with %q", err, code, why)
	}
}

// What a runtime may try again later is told as such.
func TestTryAgainLater(t *testing.T) {
	h := newHost(t)
	list := h.list(t, "1.1.0", "")
	for n := range kept {
		h.add(t, list, newContainer(t, fmt.Sprint("c", n)))
	}
	last := newContainer(t, "last")
	_, err := h.runtime.AddNetworkList(t.Context(), list, &last.RuntimeConf)
	refusedWith(t, err, types.ErrTryAgainLater, "no idle VF")
	h.Stop()
	_, err = h.runtime.AddNetworkList(t.Context(), list, &last.RuntimeConf)
	refusedWith(t, err, types.ErrTryAgainLater, "no agent answers")
	h.start(t, h.Tree)
}

// Routes have the attributes that CNI 1.1 gives them, and the result tells of them.
func TestRoutesHaveTheirAttributes(t *testing.T) {
	h := newHost(t)
	c := newContainer(t, "c")
	list := h.list(t, "1.1.0", `"ipam":{"type":"fastiov","ranges":[{"subnet":"10.1.0.0/24"}],
		"routes":[{"dst":"10.2.0.0/16","mtu":1300,"advmss":1200,"priority":7,"table":100},
		{"dst":"10.3.0.0/16","scope":253}]}`)
	result := h.add(t, list, c)
	if r := result.Routes[0]; len(result.Routes) != 2 || r.MTU != 1300 || r.AdvMSS != 1200 ||
		r.Priority != 7 || r.Table == nil || *r.Table != 100 || *result.Routes[1].Scope != 253 {
		t.Errorf("the result is %s", asJSON(result))
	}
	err := netns.Inside(c.file, func() error {
		all, err := routed(&netlink.Route{Table: 100}, netlink.RT_FILTER_TABLE)
		if len(all) != 1 || all[0].MTU != 1300 || all[0].AdvMSS != 1200 ||
			all[0].Priority != 7 || all[0].Gw.String() != "10.1.0.1" {
			t.Errorf("table 100 has %v", all)
		}
		_, to, _ := net.ParseCIDR("10.3.0.0/16")
		near, err2 := routed(&netlink.Route{Dst: to}, netlink.RT_FILTER_DST)
		if len(near) != 1 || near[0].Scope != netlink.SCOPE_LINK || near[0].Gw != nil {
			t.Errorf("the route that ends at the link is %v", near)
		}
		return errorsOf(err, err2)
	})
	if err != nil {
		t.Error(err)
	}
	h.del(t, list, c)
	h.idle(t)
}

// Once a container's VF has a link, its neighbours hear which MAC has its addresses.
func TestNeighboursAreTold(t *testing.T) {
	h := newHost(t)
	index := vfs - 1
	wire, err := netlink.LinkByName(cnitest.Peer(vfAt(index)))
	if err != nil {
		t.Fatal(err)
	}
	const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	wait := unix.NsecToTimeval(waitFor.Nanoseconds())
	if err := errorsOf(netlink.LinkSetUp(wire),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: wire.Attrs().Index}),
	); err != nil {
		t.Fatal(err)
	}
	c := newContainer(t, "c")
	list := h.list(t, "1.1.0", fmt.Sprintf(`"deviceID":%q,`, vfAt(index))+dualStack)
	result := h.add(t, list, c)
	mac, _ := net.ParseMAC(result.Interfaces[0].Mac)
	waited := map[string]bool{}
	for _, ip := range result.IPs {
		waited[ip.Address.IP.String()] = true
	}
	frame := make([]byte, 1514)
	for until := time.Now().Add(waitFor); len(waited) > 0; {
		n, _, err := unix.Recvfrom(fd, frame, 0)
		if err == unix.EINTR { // a socket with a time limit does not read on by itself
			continue
		}
		if err != nil || time.Now().After(until) {
			t.Fatalf("nothing was said of %v: %v", waited, err)
		}
		const ethernet = 14
		switch f := frame[:n]; {
		case n >= ethernet+28 && f[12] == 8 && f[13] == 6: // ARP
			sender, _ := netip.AddrFromSlice(f[ethernet+14 : ethernet+18])
			if string(f[ethernet+8:ethernet+14]) == string(mac) &&
				string(f[ethernet+24:ethernet+28]) == string(sender.AsSlice()) {
				delete(waited, sender.String())
			}
		case n == ethernet+40+32 && f[ethernet+40] == 136: // a neighbour advertisement
			target, _ := netip.AddrFromSlice(f[ethernet+48 : ethernet+64])
			if f[ethernet+7] == 255 && f[ethernet+44]&0x20 != 0 &&
				string(f[ethernet+66:ethernet+72]) == string(mac) {
				delete(waited, target.String())
			}
		}
	}
	h.del(t, list, c)
	h.idle(t)
}

// A neverLinked VF has no link, so what is to be announced of it never is.
type neverLinked struct {
	attach.Wires
	t         *testing.T
	announced atomic.Int32 // announcements that are under way
}

func (n *neverLinked) Announce(ctx context.Context, _ attach.Port) error {
	n.announced.Add(1)
	defer n.announced.Add(-1)
	<-ctx.Done()
	return context.Cause(ctx)
}

func (n *neverLinked) Unplug(p attach.Port) error {
	if left := n.announced.Load(); left != 0 {
		n.t.Errorf("VF %s is taken out, and %d announcements go on", p.Device, left)
	}
	return n.Wires.Unplug(p)
}

// What a container's VF was to be announced by is forgotten when it is taken out: the next holder,
// in a namespace at the same path, may have other addresses.
func TestAnAnnouncementEndsWithItsContainer(t *testing.T) {
	h := newHost(t)
	c := newContainer(t, "c")
	wires := &neverLinked{Wires: cnitest.Wires(h.Tree), t: t}
	server := &attach.Server{Pool: h.Pool, Wires: wires, Ready: h.Agent.Ready,
		Log: slog.New(slog.DiscardHandler)}
	req := cni.Request{Command: cni.Add, Netns: c.NetNS,
		Attachment: cni.Attachment{Network: "net", Container: "c", Interface: c.IfName},
		Ranges: []cni.Range{{Subnet: netip.MustParsePrefix("10.9.0.0/24"),
			First: netip.MustParseAddr("10.9.0.10")}}}
	for range 2 {
		if _, err := server.Do(req); err != nil {
			t.Fatal(err)
		}
		for begin := time.Now(); wires.announced.Load() != 1; time.Sleep(time.Millisecond) {
			if time.Since(begin) > waitFor {
				t.Fatalf("%d announcements are under way", wires.announced.Load())
			}
		}
		end := req
		end.Command = cni.Del
		if _, err := server.Do(end); err != nil {
			t.Fatal(err)
		}
	}
	h.idle(t)
}

// vanished has the VFs of a pool be gone from their card.
type vanished struct{ *vf.Pool }

func (p vanished) Leases() (leases []vf.Lease) {
	for _, l := range p.Pool.Leases() {
		l.Gone = true
		leases = append(leases, l)
	}
	return leases
}

// A CHECK finds that a VF is gone, also where its container has a dummy that stays.
func TestCheckFindsThatAVFIsGone(t *testing.T) {
	h := newHost(t)
	c := newContainer(t, "c")
	list := h.list(t, "1.1.0", `"driver":"vfio",`+dualStack)
	result := h.add(t, list, c)
	check := cni.Request{Command: cni.Check, Netns: c.path,
		Attachment: cni.Attachment{Network: "net", Container: "c", Interface: c.IfName},
		Device:     result.Interfaces[0].PciID,
		Settings:   cni.Settings{MAC: result.Interfaces[0].Mac}}
	wires := cnitest.Wires(h.Tree)
	if _, err := (&attach.Server{Pool: h.Pool, Wires: wires}).Do(check); err != nil {
		t.Fatal(err)
	}
	_, err := (&attach.Server{Pool: vanished{h.Pool}, Wires: wires}).Do(check)
	if err == nil || !strings.Contains(err.Error(), "which its card has no longer") {
		t.Errorf("a VF that is gone: %v", err)
	}
	h.del(t, list, c)
	h.idle(t)
}

// A note ends an attachment, so only the agent's own user may have put it.
func TestWhoseNotesCount(t *testing.T) {
	run := t.TempDir()
	notes := filepath.Join(run, "cni-ended")
	took := func() (ended []string, err error) {
		err = cni.TakeNotes(run, func(a cni.Attachment) { ended = append(ended, a.String()) })
		return ended, err
	}
	put := func(dir string) {
		t.Helper()
		if err := errorsOf(os.MkdirAll(dir, 0o700),
			os.WriteFile(filepath.Join(dir, "net%2Fc%2Feth0"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	put(notes)
	if ended, err := took(); err != nil || len(ended) != 1 || ended[0] != "net/c/eth0" {
		t.Fatalf("(a control) %q, %v", ended, err)
	}
	for name, make := range map[string]func() error{
		"a link": func() error {
			put(filepath.Join(run, "elsewhere"))
			return os.Symlink(filepath.Join(run, "elsewhere"), notes)
		},
		"others write there": func() error {
			put(notes)
			return os.Chmod(notes, 0o777)
		},
		"somebody else's": func() error {
			put(notes)
			return os.Chown(notes, 1234, 0)
		},
	} {
		if err := os.RemoveAll(notes); err != nil {
			t.Fatal(err)
		}
		if err := make(); err != nil {
			t.Fatal(err)
		}
		if ended, err := took(); err == nil || len(ended) > 0 {
			t.Errorf("%s: %q ended, %v", name, ended, err)
		}
	}
}
