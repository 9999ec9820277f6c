package cni

import (
	"encoding/json"
	"testing"
)

// Whatever a configuration says, it is refused or it has values that its keys can have.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"cniVersion":"1.1.0","name":"n","type":"fastiov"}`,
		`{"cniVersion":"0.3.1","name":"n","vlan":1000,"vlanQoS":4,"vlanProto":"802.1ad","trust":"on"}`,
		`{"name":"n","min_tx_rate":1,"max_tx_rate":2,"runtimeConfig":{"mac":"CA:FE:C0:FF:EE:00"}}`,
		`{"name":"n","ipam":{"type":"fastiov","ranges":[{"subnet":"10.0.0.0/8"},{"subnet":"::/0"}]}}`,
		`{"name":"n","ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/8"}]]}}`,
		`{"cniVersion":"1.0.0","name":"n","prevResult":{"cniVersion":"1.0.0","ips":[{"address":"::1/8"}]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parse(text)
		if err != nil {
			return
		}
		s := c.settings()
		if s.QoS < 0 || s.QoS > 7 || s.VLAN != nil && (*s.VLAN < 0 || *s.VLAN > 4094) ||
			c.MTU < 0 || s.MAC != "" && len(s.MAC) != 17 {
			t.Errorf("%s became %+v", text, c)
		}
		for _, r := range c.IPAM.Ranges {
			if !r.Subnet.Contains(r.First) || !r.Subnet.Contains(r.Gateway) {
				t.Errorf("%s has the range %+v", text, r)
			}
		}
		if _, err := json.Marshal(Request{Settings: s, Ranges: c.IPAM.Ranges}); err != nil {
			t.Errorf("%s cannot be asked: %v", text, err)
		}
	})
}

// An attachment is found by the name that the journal has of it.
func TestAttachmentsHaveNames(t *testing.T) {
	a := Attachment{"net", "c0ffee", "eth0"}
	if got, ok := ParseAttachment(a.String()); !ok || got != a {
		t.Errorf("%s is read as %+v", a, got)
	}
	for _, name := range []string{"", "pod", "a/b", "a/b/c/d"} {
		if _, ok := ParseAttachment(name); ok {
			t.Errorf("%q is an attachment", name)
		}
	}
}
