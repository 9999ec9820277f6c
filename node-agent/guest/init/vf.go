package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/failpoint"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// bringUp waits for the NIC's driver, finds its link by the MAC, gives it its address and route,
// and waits for its carrier. It returns the link's index.
func bringUp(nic *wire.NIC, driver *drivers, rec *recorder,
	within time.Duration) (index uint32, err error) {
	err = driver.wait(driverWithin)
	if err == nil {
		begin := boottime()
		failpoint.Delay(failpoint.GuestVFUp)
		index, err = linkUp(nic, rec, within)
		rec.stage(vfStage, begin)
	}
	if err != nil {
		return 0, fmt.Errorf("VF %s: %w", nic.MAC, err)
	}
	return index, nil
}

func linkUp(nic *wire.NIC, rec *recorder, within time.Duration) (index uint32, err error) {
	mac, err := parseMAC(nic.MAC)
	if err != nil {
		return 0, err
	}
	rtnl, err := openNetlink(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return 0, err
	}
	defer rtnl.close()
	watch, err := openNetlink(unix.NETLINK_ROUTE, unix.RTMGRP_LINK)
	if err != nil {
		return 0, err
	}
	defer watch.close()
	deadline := time.Now().Add(within)
	var found link
	err = rec.stepOf(vfStage, "find", func() error {
		found, err = watch.await(mac, false, deadline)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf(
			"no network device has this MAC within %v (driver missing, or its probe failed): %w",
			within, err)
	}
	err = rec.stepOf(vfStage, "address", func() error { return configure(rtnl, found.index, nic) })
	if err != nil {
		return 0, err
	}
	err = rec.stepOf(vfStage, "carrier", func() error {
		_, err := watch.await(mac, true, deadline)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("its link has no carrier within %v (is the PF's link up?): %w",
			within, err)
	}
	return found.index, nil
}

func configure(rtnl *netlink, index uint32, nic *wire.NIC) error {
	if err := rtnl.addAddress(index, nic.Address); err != nil {
		return fmt.Errorf("the address %v is not taken: %w", nic.Address, err)
	}
	if err := rtnl.setUp(index); err != nil {
		return fmt.Errorf("it does not come up: %w", err)
	}
	if !nic.Gateway.IsValid() {
		return nil
	}
	err := rtnl.addRoute(route{table: unix.RT_TABLE_MAIN, link: index,
		to: netip.PrefixFrom(nic.Gateway, 0), gateway: nic.Gateway})
	if err != nil {
		return fmt.Errorf("the route by %v is not taken: %w", nic.Gateway, err)
	}
	return nil
}

// A link holds what the kernel says of a network device.
type link struct {
	index   uint32
	mac     []byte
	running bool // up, with carrier: not IFF_RUNNING, which the kernel may announce a second later
}

// await returns when a link with this MAC exists and, if so asked, runs. It asks for the list once
// and hears of changes from then on. If notifications are lost, it asks again.
func (n *netlink) await(mac []byte, running bool, deadline time.Time) (link, error) {
	if err := n.listLinks(); err != nil {
		return link{}, err
	}
	for {
		data, err := n.receive(deadline)
		if err != nil {
			return link{}, err
		}
		if data == nil {
			if err := n.listLinks(); err != nil {
				return link{}, err
			}
			continue
		}
		messages, err := syscall.ParseNetlinkMessage(data)
		if err != nil {
			return link{}, err
		}
		for i := range messages {
			if l, ok := parseLink(&messages[i]); ok && bytes.Equal(l.mac, mac) &&
				(l.running || !running) {
				return l, nil
			}
		}
	}
}

func parseLink(m *syscall.NetlinkMessage) (l link, ok bool) {
	if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg {
		return link{}, false
	}
	attributes, err := syscall.ParseNetlinkRouteAttr(m)
	if err != nil {
		return link{}, false
	}
	l.index = binary.NativeEndian.Uint32(m.Data[4:])
	const up = unix.IFF_UP | unix.IFF_LOWER_UP
	l.running = binary.NativeEndian.Uint32(m.Data[8:])&up == up
	for _, a := range attributes {
		if a.Attr.Type == unix.IFLA_ADDRESS {
			l.mac = a.Value
		}
	}
	return l, true
}

func parseMAC(text string) ([]byte, error) {
	mac, err := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
	if err != nil || len(mac) != 6 || len(text) != len("00:00:00:00:00:00") {
		return nil, fmt.Errorf("%q is no MAC address", text)
	}
	return mac, nil
}
