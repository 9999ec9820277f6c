package startup

import (
	"fmt"
	"net/netip"
)

// Network is the emulated or real network behind the PFs: the VF of ordinal i gets the address First+i.
type Network struct {
	Subnet  netip.Prefix
	First   netip.Addr
	Gateway netip.Addr
	DNS     netip.Addr
}

// Address is that of the VF with this ordinal. Addresses belong to VFs, so they need no allocation, no lease and no DHCP on the path.
func (n Network) Address(ordinal int) (netip.Prefix, error) {
	a := n.First
	for range ordinal {
		a = a.Next()
	}
	if !n.Subnet.Contains(a) {
		return netip.Prefix{}, fmt.Errorf("VF %d would get %s, outside %s; give a larger --subnet or an earlier --first-address", ordinal, a, n.Subnet)
	}
	return netip.PrefixFrom(a, n.Subnet.Bits()), nil
}
