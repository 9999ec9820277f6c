package attach

import (
	"net/netip"
	"testing"

	"github.com/fastiov/fastiov/node-agent/cni"
)

// No VF has the last address of an IPv4 network; some have those of the smallest ones and of IPv6.
func TestNoVFHasTheBroadcastAddress(t *testing.T) {
	for _, c := range []struct {
		subnet, first string
		number        int
		given         bool
	}{
		{"10.1.0.0/29", "10.1.0.2", 4, true},
		{"10.1.0.0/29", "10.1.0.2", 5, false},
		{"10.1.0.0/31", "10.1.0.0", 1, true},
		{"255.255.255.248/29", "255.255.255.250", 5, false},
		{"fd00::/126", "fd00::2", 1, true},
	} {
		got, err := addresses([]cni.Range{{Subnet: netip.MustParsePrefix(c.subnet),
			First: netip.MustParseAddr(c.first)}}, c.number)
		if (err == nil) != c.given {
			t.Errorf("VF %d of %s from %s on has %v, %v", c.number, c.subnet, c.first, got, err)
		}
	}
}
