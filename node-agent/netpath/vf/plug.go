package vf

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fastiov/fastiov/node-agent/cni"
	"github.com/fastiov/fastiov/node-agent/cni/attach"
	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	pool "github.com/fastiov/fastiov/node-agent/vf"
)

const device = "eth0" // of a sandbox

// Plug returns a new network namespace whose eth0 is the VF of nic, with its address and a way out.
// The VF has no link yet.
func Plug(nic *sandbox.NIC) (namespace *os.File, err error) {
	if namespace, err = netns.New(); err != nil {
		return nil, err
	}
	port := portOf(nic, namespace)
	if _, err := attach.Kernel().Plug(port); err != nil {
		err = errors.Join(err, attach.Kernel().Unplug(port))
		namespace.Close()
		return nil, fmt.Errorf("VF %s: %w", port.Device, err)
	}
	return namespace, nil
}

// Unplug takes the VF of nic out of a network namespace that Plug has returned.
func Unplug(nic *sandbox.NIC, namespace *os.File) error {
	return attach.Kernel().Unplug(portOf(nic, namespace))
}

func portOf(nic *sandbox.NIC, namespace *os.File) attach.Port {
	return attach.Port{
		Device: nic.Device(), Driver: pool.Netdev, Name: device, MAC: nic.MAC,
		Netns:  fmt.Sprintf("/proc/self/fd/%d", namespace.Fd()),
		IPs:    []cni.IP{{Address: nic.Address, Gateway: nic.Gateway}},
		Routes: []cni.Route{{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0)}},
	}
}

// Linked returns when the VF in a network namespace that Plug has returned has a link, or over is
// closed.
func Linked(namespace *os.File, over <-chan struct{}) error {
	const within, look = 20 * time.Second, 5 * time.Millisecond
	late := time.After(within)
	return netns.Inside(namespace, func() error {
		for {
			link, err := netlink.LinkByName(device)
			if err != nil {
				return err
			}
			if link.Attrs().OperState == netlink.OperUp {
				return nil
			}
			select {
			case <-time.After(look):
			case <-over:
				return nil
			case <-late:
				return fmt.Errorf("%s has no link after %v", device, within)
			}
		}
	})
}
