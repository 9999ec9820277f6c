package startup

import (
	"fmt"
	"net/netip"
)

// Network is the emulated or real network of the sandboxes: NIC number i has the address First+i.
type Network struct {
	Subnet  netip.Prefix
	First   netip.Addr
	Gateway netip.Addr
	DNS     netip.Addr
}

// Address returns that of the NIC with this number. Addresses belong to NICs, so they need no
// allocation, no lease and no DHCP on the path.
func (n Network) Address(number int) (netip.Prefix, error) {
	a := n.First
	for range number {
		a = a.Next()
	}
	if !n.Subnet.Contains(a) {
		return netip.Prefix{}, fmt.Errorf("NIC %d would get %s, outside %s; "+
			"give a larger --subnet or an earlier --first-address", number, a, n.Subnet)
	}
	return netip.PrefixFrom(a, n.Subnet.Bits()), nil
}
