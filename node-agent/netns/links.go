package netns

import (
	"errors"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Links returns the links of this namespace, and nothing of VFs: all those of a card are in one
// attribute of its link, which very many do not fit.
func Links() (links []netlink.Link, err error) {
	for range 10 {
		links, err = list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) { // by links that came or went meanwhile
			break
		}
	}
	return links, err
}

func list() (links []netlink.Link, err error) {
	all, err := allLinks().Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	for _, one := range all {
		link, err := netlink.LinkDeserialize(nil, one)
		if err != nil {
			return nil, err
		}
		links = append(links, link)
	}
	return links, nil
}

// allLinks asks for no more than the links: VFs come only where an attribute says so.
func allLinks() *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	return req
}
