package attach_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/cni/attach"
	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/vf"
)

const waitFor = 20 * time.Second

const dualStack = `"mtu":1400,"ipam":{"type":"fastiov",
	"ranges":[{"subnet":"10.1.0.0/24","first":"10.1.0.10"},{"subnet":"fd00:1::/64"}],
	"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`

// A runtime adds, checks and deletes an attachment by each version of CNI that it may speak.
func TestEachVersion(t *testing.T) {
	h := newHost(t)
	for _, version := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			list, c := h.list(t, version, dualStack), newContainer(t, "c"+version)
			result := h.add(t, list, c)
			link, addresses, routes := c.link(t)
			if link == nil || link.Attrs().MTU != 1400 {
				t.Fatalf("the container has %+v after %s", link, asJSON(result))
			}
			lease := h.Pool.Leases()[0]
			if got := link.Attrs().HardwareAddr.String(); got != lease.MAC ||
				result.Interfaces[0].Mac != lease.MAC {
				t.Errorf("its MAC is %s; %s of %+v", got, asJSON(result), lease)
			}
			if version == "1.1.0" && result.Interfaces[0].PciID != lease.BDF {
				t.Errorf("the result is %s", asJSON(result))
			}
			if len(addresses) != 2 || len(result.IPs) != 2 || len(routes) != 2 {
				t.Errorf("it has %q and routes %q", addresses, routes)
			}
			if version >= "0.4.0" {
				err := h.runtime.CheckNetworkList(t.Context(), list, &c.RuntimeConf)
				if err != nil {
					t.Error(err)
				}
			}
			h.del(t, list, c)
			if link, _, _ := c.link(t); link != nil {
				t.Errorf("after its DEL the container has %+v", link)
			}
			h.del(t, list, c) // once more
			h.idle(t)
		})
	}
}

// A CHECK says what an attachment has lost.
func TestCheckFindsWhatIsLost(t *testing.T) {
	h := newHost(t)
	list, c := h.list(t, "1.1.0", dualStack), newContainer(t, "c")
	h.add(t, list, c)
	lease := h.Pool.Leases()[0]
	// Another plugin may have given it another MTU, of which the result says.
	other := h.list(t, "1.1.0", strings.Replace(dualStack, "1400", "1300", 1))
	if err := h.runtime.CheckNetworkList(t.Context(), other, &c.RuntimeConf); err != nil {
		t.Errorf("with the result's MTU: %v", err)
	}
	for _, of := range []struct{ lost, lose, regain string }{
		{"route to 0.0.0.0/0", "route del default", "route add default via 10.1.0.1 dev eth0"},
		{"route to ::/0", "-6 route del default", "-6 route add default via fd00:1::1 dev eth0"},
		{"route to 0.0.0.0/0 by 10.1.0.1", "route replace default dev eth0",
			"route replace default via 10.1.0.1 dev eth0"},
		{"address fd00:1::", "-6 addr flush dev eth0 scope global", ""},
	} {
		c.ip(t, of.lose)
		err := h.runtime.CheckNetworkList(t.Context(), list, &c.RuntimeConf)
		if err == nil || !strings.Contains(err.Error(), of.lost) {
			t.Errorf("after %s: %v", of.lose, err)
		}
		if of.regain == "" {
			continue
		}
		c.ip(t, of.regain)
		if err := h.runtime.CheckNetworkList(t.Context(), list, &c.RuntimeConf); err != nil {
			t.Errorf("after %s: %v", of.regain, err)
		}
	}
	if err := h.Unplugged(lease, c.IfName); err != nil {
		t.Fatal(err)
	}
	err := h.runtime.CheckNetworkList(t.Context(), list, &c.RuntimeConf)
	if err == nil || !strings.Contains(err.Error(), "interface eth0") {
		t.Errorf("an interface that is gone: %v", err)
	}
	h.Pool.Return(lease)
	err = h.runtime.CheckNetworkList(t.Context(), list, &c.RuntimeConf)
	if err == nil || !strings.Contains(err.Error(), "net/c/eth0 has no VF") {
		t.Errorf("a lease that is gone: %v", err)
	}
	h.idle(t)
}

// The runtime may name the VF. It is used by the driver that it is kept bound to: one by vfio is
// given a dummy interface. An attachment that has one is given no other.
func TestADeviceOfTheRuntime(t *testing.T) {
	h := newHost(t)
	writes := h.Tree.Writes()
	for index, kind := range map[int]string{0: "bridge", vfs - 1: "veth"} {
		info := filepath.Join(t.TempDir(), "devinfo", "net1.json")
		c := newContainer(t, "c"+kind)
		c.CapabilityArgs = map[string]any{
			"deviceID": vfAt(index), "mac": "CA:FE:C0:FF:EE:01", "CNIDeviceInfoFile": info}
		list := h.list(t, "1.1.0",
			`"capabilities":{"deviceID":true,"mac":true,"CNIDeviceInfoFile":true},`+dualStack)
		result := h.add(t, list, c)
		link, addresses, _ := c.link(t)
		if link.Type() != kind || len(addresses) != 2 ||
			result.Interfaces[0].PciID != vfAt(index) ||
			link.Attrs().HardwareAddr.String() != "ca:fe:c0:ff:ee:01" {
			t.Errorf("VF %d: a %s with %q; %s", index, link.Type(), addresses, asJSON(result))
		}
		if got, _ := h.Tree.VF("pf1", index); got.MAC != "ca:fe:c0:ff:ee:01" {
			t.Errorf("the card has %+v", got)
		}
		text, err := os.ReadFile(info)
		if err != nil || !strings.Contains(string(text), `"pci-address":"`+vfAt(index)) ||
			!strings.Contains(string(text), `"pf-pci-address":"0000:01:00.0"`) {
			t.Errorf("Multus is told %s, %v", text, err)
		}
		if h.Tree.Writes() != writes {
			t.Errorf("%d writes to sysfs", h.Tree.Writes()-writes)
		}
		for _, again := range []*container{c, newContainer(t, "other")} {
			again.CapabilityArgs = c.CapabilityArgs
			_, err := h.runtime.AddNetworkList(t.Context(), list, &again.RuntimeConf)
			if err == nil {
				t.Errorf("VF %d was given twice, to %s", index, again.ContainerID)
			}
		}
		h.del(t, list, newContainer(t, "other")) // as a runtime does after a failed ADD
		if n := len(h.Pool.Leases()); n != 1 {
			t.Errorf("there are %d leases", n)
		}
		h.del(t, list, c)
		h.idle(t)
		if got, _ := h.Tree.VF("pf1", index); got.MAC == "ca:fe:c0:ff:ee:01" {
			t.Errorf("the next tenant has %+v", got)
		}
		writes = h.Tree.Writes()
	}
}

// A DEL works whatever has gone before it: the namespace, the agent, or both.
func TestWhatIsGoneBeforeADel(t *testing.T) {
	h := newHost(t)
	list := h.list(t, "1.1.0", dualStack)
	t.Run("the namespace", func(t *testing.T) {
		c := newContainer(t, "c1")
		h.add(t, list, c)
		c.end()
		h.del(t, list, c)
		h.idle(t)
	})
	t.Run("the namespace, and no DEL comes", func(t *testing.T) {
		c := newContainer(t, "c2")
		h.add(t, list, c)
		c.end()
		h.idle(t)
	})
	t.Run("the agent", func(t *testing.T) {
		c, stays := newContainer(t, "c3"), newContainer(t, "stays")
		h.add(t, list, c)
		h.add(t, list, stays)
		h.Stop()
		h.del(t, list, c)
		_, err := h.runtime.AddNetworkList(t.Context(), list, &newContainer(t, "c4").RuntimeConf)
		if err == nil || !strings.Contains(err.Error(), "no agent answers") {
			t.Errorf("an ADD without an agent: %v", err)
		}
		err = h.runtime.GetStatusNetworkList(t.Context(), list)
		if e, ok := err.(*types.Error); !ok || e.Code != types.ErrPluginNotAvailable {
			t.Errorf("STATUS without an agent: %v", err)
		}
		h.start(t, h.Tree)
		if err := h.runtime.GetStatusNetworkList(t.Context(), list); err != nil {
			t.Error(err)
		}
		leases := h.Pool.Leases()
		if len(leases) != 1 || leases[0].Owner.Name != "net/stays/eth0" {
			t.Errorf("the next agent has %+v", leases)
		}
		if link, _, _ := stays.link(t); link == nil {
			t.Error("a container that stays has lost its interface")
		}
		h.del(t, list, stays)
		h.idle(t)
	})
	t.Run("the agent, and its DEL is heard twice", func(t *testing.T) {
		c := newContainer(t, "c6")
		c.IfName = "a,b"
		h.add(t, list, c)
		h.Stop()
		h.del(t, list, c)
		notes, err := filepath.Glob(filepath.Join(h.cfg.Run, "cni-ended", "*"))
		if err != nil || len(notes) != 1 {
			t.Fatalf("it leaves %q, %v", notes, err)
		}
		h.start(t, h.Tree)
		h.idle(t)
		if err := os.WriteFile(notes[0], nil, 0o600); err != nil { // by a plugin that was late
			t.Fatal(err)
		}
		h.add(t, list, c)
		h.Stop()
		h.start(t, h.Tree)
		if len(h.Pool.Leases()) != 1 {
			t.Error("a note of a former container has ended this one's attachment")
		}
		h.del(t, list, c)
		h.idle(t)
	})
	t.Run("the agent's run directory", func(t *testing.T) {
		gone := h.list(t, "1.1.0", "")
		conf := gone.Plugins[0]
		var keys map[string]any
		if err := json.Unmarshal(conf.Bytes, &keys); err != nil {
			t.Fatal(err)
		}
		keys["runDir"] = "/nonexistent"
		conf.Bytes, _ = json.Marshal(keys)
		h.del(t, gone, newContainer(t, "c5"))
	})
}

// A container that may name links holds none back by a name that the host has.
func TestAnotherNameOfALink(t *testing.T) {
	c := newContainer(t, "c1")
	link := func(name string) netlink.Link {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		l := &netlink.Veth{LinkAttrs: attrs, PeerName: name + "peer"}
		if err := netlink.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = netlink.LinkDel(l) })
		return l
	}
	link("uplink")
	given := link("given")
	index := given.Attrs().Index
	if err := errors.Join(netlink.LinkSetNsFd(given, int(c.file.Fd())),
		netns.Inside(c.file, func() error {
			return netlink.LinkAddAltName(given, "uplink")
		})); err != nil {
		t.Fatal(err)
	}
	wires := attach.Netlink{PCI: func(l netlink.Link) string { return fmt.Sprint(l.Attrs().Index) }}
	port := attach.Port{Device: fmt.Sprint(index), Netns: c.path, Driver: vf.Netdev}
	if err := wires.Unplug(port); err != nil {
		t.Error(err)
	}
}

// A device's link is looked for in sysfs first, and not among all of the host's.
func TestALinkIsFoundInSysfs(t *testing.T) {
	const device = "0000:01:10.0"
	c, tree := newContainer(t, "c1"), t.TempDir()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "uplink"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}); err != nil {
		t.Fatal(err)
	}
	shown := filepath.Join(tree, "bus/pci/devices", device, "net/uplink")
	if err := os.MkdirAll(shown, 0o700); err != nil {
		t.Fatal(err)
	}
	var asked []string
	wires := attach.Netlink{Sysfs: tree, PCI: func(l netlink.Link) string {
		asked = append(asked, l.Attrs().Name)
		if l.Attrs().Name == "lo" || l.Attrs().Name == "peer" {
			return ""
		}
		return device
	}}
	port := attach.Port{Device: device, Netns: c.path, Name: "eth0", Driver: vf.Netdev,
		MAC: "02:00:00:00:00:01"}
	if _, err := wires.Plug(port); err != nil {
		t.Fatal(err)
	}
	if len(asked) == 0 || asked[0] != "uplink" || slices.Contains(asked, "peer") {
		t.Errorf("asked for the device of %q", asked)
	}
	if err := wires.Unplug(port); err != nil {
		t.Error(err)
	}
	if peer, err := netlink.LinkByName("peer"); err == nil {
		_ = netlink.LinkDel(peer)
	}
}

const hostVF = "0000:01:10.0"

// ofAlias finds the link of a device by its alias.
var ofAlias = attach.Netlink{PCI: func(l netlink.Link) string { return l.Attrs().Alias }}

// newUplink gives the host a link of hostVF that is called uplink.
func newUplink(t *testing.T) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Flags = "uplink", net.FlagUp
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}
	if err := errors.Join(netlink.LinkAdd(link), netlink.LinkSetAlias(link, hostVF)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove("peer") })
}

func remove(name string) {
	if link, err := netlink.LinkByName(name); err == nil {
		_ = netlink.LinkDel(link)
	}
}

func addBridge(name string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
}

// isOnHost reports whether the host has the link of hostVF.
func isOnHost(t *testing.T) bool {
	t.Helper()
	links, err := netns.Links()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(links, func(l netlink.Link) bool {
		return l.Attrs().Alias == hostVF
	})
}

// hears begins to follow the host's links. What it returns is called once and says by which names
// the kernel has spoken of hostVF's since then: as of one that is there, and as of one that goes.
func hears(t *testing.T) func() (there, goes []string) {
	t.Helper()
	updates, end := make(chan netlink.LinkUpdate, 100), make(chan struct{})
	t.Cleanup(func() { close(end) })
	if err := netlink.LinkSubscribe(updates, end); err != nil {
		t.Fatal(err)
	}
	return func() (there, goes []string) {
		const last = "last"
		if err := addBridge(last); err != nil {
			t.Fatal(err)
		}
		defer remove(last)
		for {
			select {
			case u := <-updates:
				switch name := u.Attrs().Name; {
				case name == last:
					return there, goes
				case u.Attrs().Alias != hostVF:
				case u.Header.Type == unix.RTM_DELLINK:
					goes = append(goes, name)
				default:
					there = append(there, name)
				}
			case <-time.After(waitFor):
				t.Fatal("the kernel does not tell of a new link")
			}
		}
	}
}

// A VF goes into its container by one message: who follows the host's links hears of no name that
// it had on the way, and the container may have a link of its former name. Where its new name is
// taken there, it can be taken back.
func TestAVFMovesByOneMessage(t *testing.T) {
	c := newContainer(t, "c1")
	newUplink(t)
	if err := netns.Inside(c.file, func() error { return addBridge("uplink") }); err != nil {
		t.Fatal(err)
	}
	port := attach.Port{Device: hostVF, Netns: c.path, Name: "eth0", Driver: vf.Netdev,
		MAC: "02:00:00:00:00:01"}
	heard := hears(t)
	if _, err := ofAlias.Plug(port); err != nil {
		t.Fatal(err)
	}
	there, goes := heard()
	// before 6.6, Linux tells its end by the new name where the container has the former one
	if len(goes) != 1 || goes[0] != "uplink" && goes[0] != "eth0" ||
		slices.ContainsFunc(there, func(name string) bool { return name != "uplink" }) {
		t.Errorf("the host hears of %q, and that %q goes", there, goes)
	}
	if found, _, _ := c.link(t); found == nil || found.Attrs().Flags&net.FlagUp == 0 {
		t.Errorf("in the container it is %v", found)
	}
	if err := ofAlias.Unplug(port); err != nil {
		t.Fatal(err)
	}
	port.Name = "uplink"
	if _, err := ofAlias.Plug(port); !errors.Is(err, unix.EEXIST) ||
		!strings.Contains(err.Error(), "as uplink") {
		t.Errorf("a name that is taken: %v", err)
	}
	if err := ofAlias.Unplug(port); err != nil {
		t.Fatal(err)
	}
	if !isOnHost(t) {
		t.Error("it has not come back to the host")
	}
}

// A tenant may call its VF's interface what it likes. The host, whose services may go by names,
// never hears of that.
func TestTheHostHearsNoTenantsName(t *testing.T) {
	c := newContainer(t, "c1")
	newUplink(t)
	port := attach.Port{Device: hostVF, Netns: c.path, Name: "eth0", Driver: vf.Netdev,
		MAC: "02:00:00:00:00:01"}
	if _, err := ofAlias.Plug(port); err != nil {
		t.Fatal(err)
	}
	if err := netns.Inside(c.file, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetDown(link), netlink.LinkSetName(link, "eno1"),
			netlink.LinkAddAltName(link, "eno2"), netlink.LinkSetUp(link))
	}); err != nil {
		t.Fatal(err)
	}
	heard := hears(t)
	if err := ofAlias.Unplug(port); err != nil {
		t.Fatal(err)
	}
	there, goes := heard()
	tenants := func(name string) bool { return !strings.HasPrefix(name, "vf") }
	if len(there) == 0 || len(goes) > 0 || slices.ContainsFunc(there, tenants) {
		t.Errorf("the host hears of %q, and that %q goes", there, goes)
	}
}

// A path may come to lead to another namespace while a VF moves. The VF is dressed in the one that
// it went to.
func TestAPathThatPassesOn(t *testing.T) {
	first, second := newContainer(t, "c1"), newContainer(t, "c2")
	newUplink(t)
	path := filepath.Join(t.TempDir(), "ns")
	if err := os.Symlink(first.path, path); err != nil {
		t.Fatal(err)
	}
	wires := ofAlias
	wires.PCI = func(l netlink.Link) string { // asked before the move, too
		_ = os.Remove(path)
		if err := os.Symlink(second.path, path); err != nil {
			t.Error(err)
		}
		return l.Attrs().Alias
	}
	port := attach.Port{Device: hostVF, Netns: path, Name: "eth0", Driver: vf.Netdev,
		MAC: "02:00:00:00:00:01"}
	if _, err := wires.Plug(port); err != nil {
		t.Error(err)
	}
	if found, _, _ := first.link(t); found == nil || found.Attrs().Flags&net.FlagUp == 0 {
		t.Errorf("where it went to it is %v", found)
	}
}

// GC ends the attachments of its network that the runtime does not know any more, and no others.
func TestGC(t *testing.T) {
	h := newHost(t)
	list := h.list(t, "1.1.0", dualStack)
	other := h.list(t, "1.1.0", dualStack)
	other.Name = "other"
	for _, name := range []string{"a", "b"} {
		h.add(t, list, newContainer(t, name))
	}
	h.add(t, other, newContainer(t, "c"))
	device, err := vf.Process(vf.Device, "net/d/eth0", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	lease, err := h.Pool.Lease(device, vf.Want{})
	if err != nil {
		t.Fatal(err)
	}
	valid := []types.GCAttachment{{ContainerID: "b", IfName: "eth0"}}
	args := &libcni.GCArgs{ValidAttachments: valid}
	if err := h.runtime.GCNetworkList(t.Context(), list, args); err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, l := range h.Pool.Leases() {
		left = append(left, l.Owner.String())
	}
	slices.Sort(left)
	want := []string{"device/net/d/eth0", "pod/net/b/eth0", "pod/other/c/eth0"}
	if !slices.Equal(left, want) {
		t.Errorf("left are %q", left)
	}
	h.Pool.Return(lease)
}

// In a chain the interface is added to what the plugins before have made.
func TestChained(t *testing.T) {
	h := newHost(t)
	list, c := h.list(t, "1.1.0", dualStack), newContainer(t, "c")
	first, err := h.runtime.AddNetworkList(t.Context(), list, &c.RuntimeConf)
	if err != nil {
		t.Fatal(err)
	}
	before, _ := json.Marshal(first)
	c.IfName = "net1"
	second := h.list(t, "1.1.0", `"prevResult":`+string(before))
	result := h.add(t, second, c)
	if len(result.Interfaces) != 2 || result.Interfaces[1].Name != "net1" ||
		len(result.IPs) != 2 || *result.IPs[0].Interface != 0 {
		t.Errorf("the result is %s", asJSON(result))
	}
	h.del(t, second, c)
	c.IfName = "eth0"
	h.del(t, list, c)
	h.idle(t)
}

// An ADD that cannot be says why in one line, and leaves nothing.
func TestWhatCannotBe(t *testing.T) {
	h := newHost(t)
	for says, keys := range map[string]string{
		"mac: \"01:00:00:00:00:01\"":           `"mac":"01:00:00:00:00:01"`,
		"vlan: 5000 is not in":                 `"vlan":5000`,
		"vlanQoS: it needs a vlan":             `"vlanQoS":4`,
		"vlanProto: \"802.1x\" is not one":     `"vlan":1,"vlanProto":"802.1x"`,
		"min_tx_rate: 200 is more than":        `"min_tx_rate":200,"max_tx_rate":100`,
		"spoofchk: \"true\" is not one":        `"spoofchk":"true"`,
		"\"ranges\" has no subnet":             `"ipam":{"type":"fastiov"}`,
		"is not in 10.1.0.0/24":                `"ipam":{"type":"fastiov","ranges":[{"subnet":"10.1.0.0/24","first":"10.2.0.1"}]}`,
		"has no address in 10.1.0.0/30":        `"ipam":{"type":"fastiov","ranges":[{"subnet":"10.1.0.0/30"}]}`,
		"no VF 0000:09:10.0":                   `"deviceID":"0000:09:10.0"`,
		"no VF 0000:01:10.0 by netdev":         `"deviceID":"0000:01:10.0","driver":"netdev"`,
		"failed to find plugin \"nosuchipam\"": `"ipam":{"type":"nosuchipam"}`,
	} {
		c := newContainer(t, "c")
		_, err := h.runtime.AddNetworkList(t.Context(), h.list(t, "1.1.0", keys), &c.RuntimeConf)
		if err == nil || !strings.Contains(err.Error(), says) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want %q", keys, err, says)
		}
		h.idle(t)
		c.end()
	}
	for path, says := range map[string]string{
		"/nonexistent":      "no network namespace",
		"/proc/self/ns/net": "the agent's own network namespace",
	} {
		c := newContainer(t, "c")
		c.NetNS = path
		_, err := h.runtime.AddNetworkList(t.Context(), h.list(t, "1.1.0", ""), &c.RuntimeConf)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("the namespace %s: %v", path, err)
		}
	}
}
