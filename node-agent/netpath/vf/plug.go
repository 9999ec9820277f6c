package vf

import (
	"context"
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
func Plug(_ context.Context, nic *sandbox.NIC) (namespace *os.File, err error) {
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

// Linked returns when the VF in a network namespace that Plug has returned has a link.
func Linked(ctx context.Context, namespace *os.File) error {
	const within = 20 * time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, within,
		fmt.Errorf("%s has no link after %v", device, within))
	// The socket stays in the namespace that it was made in, so that no thread waits there.
	updates := make(chan netlink.LinkUpdate)
	err := netns.Inside(namespace, func() error {
		return netlink.LinkSubscribeWithOptions(updates, ctx.Done(),
			netlink.LinkSubscribeOptions{ListExisting: true})
	})
	if err != nil {
		cancel()
		return err
	}
	defer func() {
		cancel()
		for range updates { // the subscription ends once nothing is left that it would tell
		}
	}()
	for update := range updates {
		if a := update.Attrs(); a.Name == device && a.OperState == netlink.OperUp {
			return nil
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("the kernel tells no more of %s", device)
}
