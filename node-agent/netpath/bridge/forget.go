package bridge

import (
	"net/netip"

	"github.com/vishvananda/netlink"
)

// forget has the kernel forget the connections of an address, which the next sandbox there would
// inherit: what is sent to the former one from outside would be led to it.
func forget(address netip.Addr) error {
	var of []netlink.CustomConntrackFilter
	for _, side := range []netlink.ConntrackFilterType{netlink.ConntrackOrigSrcIP,
		netlink.ConntrackReplySrcIP} { // what it began, and what a published port has led to it
		filter := &netlink.ConntrackFilter{}
		if err := filter.AddIP(side, address.AsSlice()); err != nil {
			return err
		}
		of = append(of, filter)
	}
	_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily(
		netlink.FAMILY_V4), of...)
	return err
}
