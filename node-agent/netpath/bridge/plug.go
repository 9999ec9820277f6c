package bridge

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

func (b *Bridge) portName(number int) string { return b.Name + "p" + strconv.Itoa(number) }

// numberOf returns the number of the port whose address the NIC has.
func (b *Bridge) numberOf(nic *sandbox.NIC) (int, error) {
	for number := range b.leases.size {
		if address, err := b.Network.Address(number); err == nil && address == nic.Address {
			return number, nil
		}
	}
	return 0, fmt.Errorf("%s is no address of bridge %s", nic.Address, b.Name)
}

// Plug returns a new network namespace whose eth0 is a port of the bridge, with the address of nic;
// without a nic, one that has a loopback device alone. It lives as long as the file is open or a
// process is in it, and the port with it.
func (b *Bridge) Plug(nic *sandbox.NIC) (namespace *os.File, err error) {
	if namespace, err = NewNamespace(); err != nil {
		return nil, err
	}
	if err := b.connect(nic, namespace); err != nil {
		namespace.Close()
		return nil, fmt.Errorf("port of bridge %s: %w", b.Name, err)
	}
	return namespace, nil
}

func (b *Bridge) connect(nic *sandbox.NIC, namespace *os.File) error {
	number, err := b.numberOf(nic)
	if err != nil {
		return err
	}
	mac, err := net.ParseMAC(nic.MAC)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = b.portName(number), b.link.Index
	port := &netlink.Veth{LinkAttrs: attrs, PeerName: device, PeerHardwareAddr: mac,
		PeerNamespace: netlink.NsFd(namespace.Fd())}
	err = netlink.LinkAdd(port)
	if errors.Is(err, fs.ErrExist) { // of a sandbox whose end is still under way in the kernel
		unplug(attrs.Name)
		err = netlink.LinkAdd(port)
	}
	if err != nil {
		return err
	}
	if err := netlink.LinkSetIsolated(port, !b.Shared); err != nil {
		return fmt.Errorf("isolation: %w", err)
	}
	if err := Inside(namespace, func() error { return address(nic) }); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(port); err != nil {
		return err
	}
	return errors.Join(linked(attrs.Name), linked(b.Name), // which has none without a port
		Inside(namespace, func() error { return linked(device) }))
}

// linked returns when the device sends, and its bridge forwards, which begins a moment after it is
// up. A first packet that was lost would be sent again after a second.
func linked(name string) error {
	const within, look = 2 * time.Second, 200 * time.Microsecond
	for until := time.Now().Add(within); time.Now().Before(until); time.Sleep(look) {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
	}
	return fmt.Errorf("%s has no link after %v", name, within)
}

const device = "eth0" // of a sandbox

// address gives the device of this network namespace the address of nic, and a way out.
func address(nic *sandbox.NIC) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(nic.Address)}); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index,
		Gw: nic.Gateway.AsSlice()})
}

// unplug removes a device, if it is there.
func unplug(name string) {
	if link, err := netlink.LinkByName(name); err == nil {
		_ = netlink.LinkDel(link)
	}
}

// portsOf lists the ports of a bridge that are there.
func portsOf(bridge string) (names []string) {
	links, _ := netlink.LinkList()
	for _, link := range links {
		number, is := strings.CutPrefix(link.Attrs().Name, bridge+"p")
		if _, err := strconv.Atoi(number); is && err == nil {
			names = append(names, link.Attrs().Name)
		}
	}
	return names
}

// NewNamespace returns a network namespace without a name, whose loopback device is up and whose
// other devices will speak IPv4 only.
func NewNamespace() (namespace *os.File, err error) {
	err = apart(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		const noIPv6 = "/proc/sys/net/ipv6/conf/default/disable_ipv6"
		if err := os.WriteFile(noIPv6, []byte("1"), 0); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return err
		}
		namespace, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("a network namespace: %w", err)
	}
	return namespace, nil
}

// Inside runs f in a network namespace. f must not hand work to other goroutines.
func Inside(namespace *os.File, f func() error) error {
	return apart(func() error {
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
		return f()
	})
}

// apart runs f on a thread that comes back into its network namespace, or ends.
func apart(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer home.Close()
		err = f()
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		} // else the thread ends with this goroutine
		done <- err
	}()
	return <-done
}
