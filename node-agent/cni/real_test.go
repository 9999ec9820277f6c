//go:build cni

package cni_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/beside"
	"github.com/fastiov/fastiov/node-agent/cni"
	"github.com/fastiov/fastiov/node-agent/cni/attach"
	"github.com/fastiov/fastiov/node-agent/netns"
	netvf "github.com/fastiov/fastiov/node-agent/netpath/vf"
	"github.com/fastiov/fastiov/node-agent/procfs"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/testbed"
)

// The agent's side once more, over the VFs of a card that a kernel drives. FASTIOV_TEST_CNI_PAIRS
// says how many containers come and go.
func TestReal(t *testing.T) {
	needs := testbed.Needs{NICs: 1, CPUs: 1, Env: []string{pairsEnv}, Images: []string{"python:3"}}
	if !testbed.Within() {
		program, err := beside.CNI.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer program.Close()
		needs.Files = map[string]string{pluginName: fmt.Sprintf("/proc/self/fd/%d", program.Fd())}
	}
	testbed.Inside(t, needs, func(t *testing.T) {
		out, err := exec.Command("modprobe", "-a", "igbvf", "dummy").CombinedOutput()
		if err != nil {
			t.Fatalf("modprobe: %v: %s", err, out)
		}
		run := filepath.Join(t.TempDir(), "fastiov")
		t.Cleanup(func() {
			if err := vf.Undo(vf.Config{Run: run}); err != nil {
				t.Errorf("undo: %v", err)
			}
		})
		pool, err := vf.Open(t.Context(), vf.Config{PFs: []string{"igb"}, NetdevVFs: 3, Run: run,
			Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
		if err != nil {
			t.Fatal(err)
		}
		n := &node{pool: pool, server: &attach.Server{Pool: pool, Wires: attach.Kernel(),
			Ready: func() error { return nil }, RunDir: run, Log: slog.New(slog.DiscardHandler)}}
		socket, err := net.Listen("unix", filepath.Join(run, cni.Socket))
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = n.server.Serve(socket) }()
		stop := sync.OnceFunc(func() {
			socket.Close()
			pool.Close()
		})
		defer stop()
		n.idle(t)
		t.Run("a list of links", cardWithoutVFs)
		t.Run("two containers talk", n.talk)
		t.Run("a setting is refused", n.refused)
		t.Run("by vfio", n.byVFIO)
		t.Run("a VMM that is not ours", n.foreignVMM)
		t.Run("in a sandbox", n.inSandbox)
		t.Run("namespace gone", n.gone)
		t.Run("pairs", n.pairs)
		stop()
		t.Run("killed agents", func(t *testing.T) { killed(t, run, pairsOf()) })
	})
}

type node struct {
	pool   *vf.Pool
	server *attach.Server
}

const (
	igbVFs   = 7
	pairsEnv = "FASTIOV_TEST_CNI_PAIRS"
)

func pairsOf() int {
	if asked, err := strconv.Atoi(os.Getenv(pairsEnv)); err == nil {
		return asked
	}
	return 10
}

func (n *node) idle(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for range n.pool.Watch(ctx) {
		idle := 0
		for _, s := range n.pool.Snapshot() {
			if s.State == vf.Idle {
				idle++
			}
		}
		if idle == igbVFs {
			return
		}
	}
	t.Fatalf("not all VFs are idle: %+v", n.pool.Snapshot())
}

// box makes a namespace with a path, and says how to end it.
func box(t *testing.T, name string) (file *os.File, path string, end func()) {
	t.Helper()
	file, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	from := fmt.Sprintf("/proc/self/fd/%d", file.Fd())
	if err := unix.Mount(from, path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	return file, path, func() {
		_ = unix.Unmount(path, unix.MNT_DETACH)
		_ = os.Remove(path)
		file.Close()
	}
}

func adding(container, netns string) cni.Request {
	subnet := netip.MustParsePrefix("10.9.0.0/24")
	r := cni.Range{Subnet: subnet}
	_ = r.Fill()
	return cni.Request{
		Command: cni.Add, Attachment: cni.Attachment{"net", container, "eth0"}, Netns: netns,
		Ranges: []cni.Range{r},
	}
}

func (n *node) do(t *testing.T, req cni.Request) cni.Reply {
	t.Helper()
	reply, err := n.server.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// Each of two containers hears of the other by the MAC of its VF.
func (n *node) talk(t *testing.T) {
	a, pathA, endA := box(t, "a")
	defer endA()
	b, pathB, endB := box(t, "b")
	defer endB()
	req := adding("a", pathA)
	req.MTU = 1400
	first, second := n.do(t, req), n.do(t, adding("b", pathB))
	mac := first.MAC
	if mac == second.MAC || first.MTU != 1400 {
		t.Errorf("ADDs gave %+v and %+v", first, second)
	}
	req.Settings.MAC = mac
	req.Command, req.IPs = cni.Check, first.IPs
	n.do(t, req)
	to := second.IPs[0].Address.Addr()
	var heard net.PacketConn
	err := netns.Inside(b, func() (err error) {
		heard, err = net.ListenPacket("udp", netip.AddrPortFrom(to, 9).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer heard.Close()
	buffer := make([]byte, 16)
	for try := range 60 { // the link of a VF takes a while to come up
		err := netns.Inside(a, func() error {
			c, err := net.Dial("udp", netip.AddrPortFrom(to, 9).String())
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte("hello"))
			return err
		})
		_ = heard.SetReadDeadline(time.Now().Add(time.Second))
		if _, _, readErr := heard.ReadFrom(buffer); readErr == nil {
			t.Logf("heard after %d tries", try+1)
			break
		} else if try == 59 {
			t.Fatalf("nothing was heard: %v, %v", err, readErr)
		}
	}
	err = netns.Inside(b, func() error {
		known, err := netlink.NeighList(0, netlink.FAMILY_V4)
		for _, k := range known {
			if k.IP.String() == first.IPs[0].Address.Addr().String() {
				if k.HardwareAddr.String() != mac {
					t.Errorf("b knows a by %s", k.HardwareAddr)
				}
				return err
			}
		}
		t.Errorf("b does not know a: %v", known)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, name := range []string{"a", "b"} {
		n.do(t, cni.Request{Command: cni.Del, Attachment: cni.Attachment{"net", name, "eth0"}})
	}
	n.idle(t)
}

// igbvf takes no MAC but the one that it found when it was bound. The ADD says so, and leaves
// nothing.
func (n *node) refused(t *testing.T) {
	_, path, end := box(t, "m")
	defer end()
	req := adding("m", path)
	req.Settings.MAC = "02:00:00:00:00:0a"
	_, err := n.server.Do(req)
	if err == nil || !strings.Contains(err.Error(), "mac: 02:00:00:00:00:0a") {
		t.Errorf("a MAC that its driver refuses: %v", err)
	}
	n.idle(t)
}

// A VF by vfio can be opened by a process that is not ours, and its container has a dummy.
func (n *node) byVFIO(t *testing.T) {
	file, path, end := box(t, "v")
	defer end()
	req := adding("v", path)
	req.Device, req.Settings.MAC = n.pool.Snapshot()[0].BDF, "02:00:00:00:00:0b"
	reply := n.do(t, req)
	err := netns.Inside(file, func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil && (link.Type() != "dummy" ||
			link.Attrs().HardwareAddr.String() != reply.MAC) {
			t.Errorf("the container has a %s, %+v", link.Type(), link.Attrs())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	lease := n.pool.Leases()[0]
	group, err := os.OpenFile(lease.Group, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	group.Close()
	n.do(t, cni.Request{Command: cni.Del, Attachment: req.Attachment})
	n.idle(t)
}

// A container of ours has a VF as its eth0, with the VF's MAC and a link, and the VF comes back
// without having been waited for.
func (n *node) inSandbox(t *testing.T) {
	path := netvf.Path{Pool: n.pool, Netdev: true}
	lease, err := path.Lease("sandbox")
	if err != nil {
		t.Fatal(err)
	}
	before := n.failures(lease.NIC.Device())
	if err := path.Own(lease, sandbox.Record{Spec: sandbox.Spec{ID: "sandbox"},
		PID: os.Getpid(), StartTicks: ownTicks(t)}); err != nil {
		t.Fatal(err)
	}
	lease.NIC.Address = netip.MustParsePrefix("10.9.0.9/24")
	lease.NIC.Gateway = netip.MustParseAddr("10.9.0.254")
	file, err := netvf.Plug(t.Context(), &lease.NIC)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := netvf.Linked(t.Context(), file); err != nil {
		t.Error(err)
	}
	err = netns.Inside(file, func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil && (link.Attrs().ParentDev != lease.NIC.Device() ||
			link.Attrs().HardwareAddr.String() != lease.NIC.MAC) {
			t.Errorf("%+v is not the VF of %+v", link.Attrs(), lease)
		}
		return err
	})
	if err := errors.Join(err, netvf.Unplug(&lease.NIC, file)); err != nil {
		t.Error(err)
	}
	path.Return(lease)
	n.idle(t)
	if failed := n.failures(lease.NIC.Device()); failed > before {
		t.Errorf("it was quarantined %d times on its way back", failed-before)
	}
}

// failures returns how often a VF was not made ready.
func (n *node) failures(bdf string) int {
	for _, s := range n.pool.Snapshot() {
		if s.BDF == bdf {
			return s.ResetFailures
		}
	}
	return 0
}

func ownTicks(t *testing.T) uint64 {
	t.Helper()
	ticks, err := procfs.StartTicks(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	return ticks
}

// The kernel takes a VF back from a namespace that has ended; the DEL comes later.
func (n *node) gone(t *testing.T) {
	_, path, end := box(t, "g")
	req := adding("g", path)
	n.do(t, req)
	end()
	n.do(t, cni.Request{Command: cni.Del, Attachment: req.Attachment})
	n.idle(t)
}

// Containers come and go, by seed, three at a time at most, some without a DEL before their end.
func (n *node) pairs(t *testing.T) {
	pairs := pairsOf()
	random := rand.New(rand.NewPCG(1, 0))
	for done := range pairs {
		_, path, end := box(t, "p")
		req := adding("p", path)
		if random.IntN(2) == 0 {
			req.Driver = "vfio"
		}
		_, err := n.server.Do(req)
		for tries := 0; err != nil && tries < 600; tries++ { // they are being reset
			time.Sleep(100 * time.Millisecond)
			_, err = n.server.Do(req)
		}
		if err != nil {
			t.Fatalf("pair %d: %v", done, err)
		}
		if random.IntN(3) == 0 {
			end()
		}
		n.do(t, cni.Request{Command: cni.Del, Attachment: req.Attachment})
		end()
	}
	n.idle(t)
	t.Logf("%d pairs, 0 VFs lost", pairs)
}

// cardWithoutVFs checks that a list of links has the card, and nothing of its VFs.
func cardWithoutVFs(t *testing.T) {
	full, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	links, err := netns.Links()
	if err != nil {
		t.Fatal(err)
	}
	told := func(links []netlink.Link) (n int) {
		for _, l := range links {
			n += len(l.Attrs().Vfs)
		}
		return n
	}
	if len(links) != len(full) || told(full) == 0 || told(links) > 0 {
		t.Errorf("%d links with %d VFs, of %d with %d", len(links), told(links), len(full),
			told(full))
	}
}
