//go:build containers

package attach_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/fastiov/fastiov/node-agent/vf"
)

// debian is the folder of the plugins of containernetworking-plugins.
const debian = "/usr/lib/cni"

// newPeers is a host whose runtime finds Debian's plugins, too.
func newPeers(t *testing.T) *host {
	t.Helper()
	if _, err := os.Stat(filepath.Join(debian, "host-local")); err != nil {
		if os.Getenv("FASTIOV_CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("%v; install containernetworking-plugins", err)
	}
	h := newHost(t)
	h.runtime = libcni.NewCNIConfigWithCacheDir([]string{h.plugins, debian}, t.TempDir(), nil)
	return h
}

// single is a configuration as sriov-cni's documentation has them: one plugin, and no list.
func (h *host) single(t *testing.T, version, keys string) *libcni.NetworkConfigList {
	t.Helper()
	//lint:ignore SA1019 sriov-cni's documentation still has that form
	conf, err := libcni.ConfFromBytes([]byte(fmt.Sprintf(
		`{"cniVersion":%q,"name":"sriov-net","type":"fastiov","runDir":%q,%s}`,
		version, h.cfg.Run, keys)))
	if err != nil {
		t.Fatal(err)
	}
	list, err := libcni.ConfListFromConf(conf) //lint:ignore SA1019 the same
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// The configurations of sriov-cni's documentation do what it says of their keys.
func TestConfigurationsOfSRIOVCNI(t *testing.T) {
	h := newPeers(t)
	byVFIO, netdev := fmt.Sprintf(`"deviceID":%q,`, vfAt(0)), fmt.Sprintf(`"deviceID":%q,`, vfAt(3))
	ipam := fmt.Sprintf(`"ipam":{"type":"host-local","subnet":"10.56.217.0/24",
		"rangeStart":"10.56.217.171","rangeEnd":"10.56.217.181","dataDir":%q,
		"routes":[{"dst":"0.0.0.0/0"}],"gateway":"10.56.217.1"}`, t.TempDir())
	for name, c := range map[string]struct {
		keys    string
		index   int
		address string
		want    vf.Settings
	}{
		"each field": {byVFIO + `"mac":"CA:FE:C0:FF:EE:00","vlan":1000,"vlanQoS":4,
			"vlanProto":"802.1ad","min_tx_rate":100,"max_tx_rate":200,"spoofchk":"off","trust":"on",
			"link_state":"enable","logLevel":"debug","logFile":"/dev/null"`, 0, "",
			vf.Settings{MAC: "ca:fe:c0:ff:ee:00", VLAN: 1000, QoS: 4, Proto: vf.Proto8021AD,
				MinRate: 100, MaxRate: 200, Trust: true, Link: vf.LinkOn}},
		"with IPAM": {netdev + `"vlan":2222,` + ipam, 3, "10.56.217.171/24",
			vf.Settings{VLAN: 2222, SpoofCheck: true}},
		"with DPDK":    {byVFIO + `"vlan":1000`, 0, "", vf.Settings{VLAN: 1000, SpoofCheck: true}},
		"with flags":   {byVFIO + `"vlan":1000,"max_tx_rate":100,"spoofchk":"off","trust":"on","link_state":"enable"`, 0, "", vf.Settings{VLAN: 1000, MaxRate: 100, Trust: true, Link: vf.LinkOn}},
		"IPAM by vfio": {byVFIO + ipam, 0, "10.56.217.172/24", vf.Settings{SpoofCheck: true}},
	} {
		for _, version := range []string{"0.3.1", "1.0.0"} {
			list, box := h.single(t, version, c.keys), newContainer(t, "c")
			h.idle(t)
			result := h.add(t, list, box)
			got, err := h.Tree.VF("pf1", c.index)
			if got.Link == vf.LinkAuto { // as a lease leaves it that had another
				got.Link = ""
			}
			if c.want.MAC == "" {
				c.want.MAC = result.Interfaces[0].Mac
			}
			if err != nil || got != c.want {
				t.Errorf("%s: the card has %+v, want %+v", name, got, c.want)
			}
			link, addresses, _ := box.link(t)
			if link == nil || c.address != "" && (len(addresses) != 1 || len(result.IPs) != 1 ||
				!strings.HasPrefix(addresses[0], "10.56.217.1")) {
				t.Errorf("%s: the container has %v with %q; %s",
					name, link, addresses, asJSON(result))
			}
			h.del(t, list, box)
			box.end()
		}
	}
	h.idle(t)
}

// An address that another plugin has allocated is checked with it, and given back by DEL.
func TestDelegatedIPAM(t *testing.T) {
	h := newPeers(t)
	data := t.TempDir()
	list := h.list(t, "1.0.0", fmt.Sprintf(`"ipam":{"type":"host-local","dataDir":%q,
		"ranges":[[{"subnet":"10.7.0.0/24"}],[{"subnet":"fd00:7::/64"}]]}`, data))
	taken := func() (n int) {
		files, _ := filepath.Glob(filepath.Join(data, "net", "[0-9f]*"))
		return len(files)
	}
	box := newContainer(t, "c")
	h.add(t, list, box)
	if _, addresses, _ := box.link(t); len(addresses) != 2 || taken() != 2 {
		t.Errorf("the container has %q, host-local %d", addresses, taken())
	}
	if err := h.runtime.CheckNetworkList(t.Context(), list, &box.RuntimeConf); err != nil {
		t.Error(err)
	}
	h.del(t, list, box)
	if taken() != 0 {
		t.Errorf("after the DEL host-local has %d", taken())
	}
	h.idle(t)
}

// Before Debian's tuning the plugin is one of a chain.
func TestChainOfDebians(t *testing.T) {
	h := newPeers(t)
	text := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","plugins":[
		{"type":"fastiov","runDir":%q,%s},
		{"type":"tuning","sysctl":{"net.ipv4.conf.eth0.rp_filter":"2"}}]}`, h.cfg.Run, dualStack)
	list, err := libcni.ConfListFromBytes([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	box := newContainer(t, "c")
	if result := h.add(t, list, box); len(result.Interfaces) != 1 || len(result.IPs) != 2 {
		t.Errorf("the result is %s", asJSON(result))
	}
	if err := h.runtime.CheckNetworkList(t.Context(), list, &box.RuntimeConf); err != nil {
		t.Error(err)
	}
	h.del(t, list, box)
	h.idle(t)
}
