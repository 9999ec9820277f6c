//go:build containers && scon

package e2e

import (
	"encoding/json"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fastiov/fastiov/node-agent/netpath/scon"
)

// Functions on a bridge with the express path answer as without, and nothing of that path is left
// behind the node.
func TestFunctionsByTheExpressPath(t *testing.T) {
	inNetwork(t, func() {
		if left := scon.Attached(scon.Records()); len(left) > 0 {
			t.Fatalf("there before: %v", left)
		}
		was := conntrack(t)
		var bridge []string
		state := func() (s scon.State) {
			text := must(t, "scon", "status", "--json")
			if err := json.Unmarshal([]byte(text), &s); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			return s
		}
		functionsInContainers(t, func() {
			// The uplink is there now, and from here on it is the default route's.
			if err := netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(198, 18, 0, 1)}); err != nil {
				t.Fatal(err)
			}
			if bridge = scon.Attached(scon.Records()); len(bridge) != 1 {
				t.Fatalf("bridges with an express path: %v", bridge)
			}
			for until := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
				if s := state(); s.Followed && s.Answered && s.TCP && len(s.Uplinks) == 1 {
					return
				} else if time.Now().After(until) {
					t.Fatalf("%+v", s)
				}
			}
		}, func(run string) {
			s := state()
			t.Logf("packets: %v", s.Packets)
			if s.Packets["express"] < 100 {
				t.Errorf("%v, %v", s.Packets, s.Refused)
			}
			for _, said := range []string{must(t, "status", "--run-dir", run),
				must(t, "scon", "status")} {
				if !strings.Contains(said, "express path of bridge "+bridge[0]) {
					t.Errorf("status says nothing of it: %s", said)
				}
			}
		}, "--scon", "--metrics", "")
		if left := scon.Attached(scon.Records()); len(left) > 0 {
			t.Errorf("left over: the express path of %v", left)
		}
		if now := conntrack(t); now != was {
			t.Errorf("conntrack's settings are %s, and were %s", now, was)
		}
	})
}

func conntrack(t *testing.T) (all string) {
	t.Helper()
	for _, file := range scon.Settings {
		is, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all += strings.TrimSpace(string(is))
	}
	return all
}
