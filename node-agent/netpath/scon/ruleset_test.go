package scon

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Docker's own rules, of a host with one published port.
const docker = `
iptables-restore <<END
*raw
:PREROUTING ACCEPT
-A PREROUTING -d 10.9.0.2/32 ! -i br0 -j DROP
COMMIT
*nat
:PREROUTING ACCEPT
:OUTPUT ACCEPT
:POSTROUTING ACCEPT
:DOCKER -
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 10.9.0.0/24 ! -o br0 -j MASQUERADE
-A DOCKER ! -i br0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.9.0.2:80
COMMIT
*filter
:INPUT ACCEPT
:FORWARD DROP
:DOCKER -
:DOCKER-BRIDGE -
:DOCKER-CT -
:DOCKER-FORWARD -
:DOCKER-ISOLATION-STAGE-1 -
:DOCKER-ISOLATION-STAGE-2 -
:DOCKER-USER -
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER -d 10.9.0.2/32 ! -i br0 -o br0 -p tcp -m tcp --dport 80 -j ACCEPT
-A DOCKER ! -i br0 -o br0 -j DROP
-A DOCKER-BRIDGE -o br0 -j DOCKER
-A DOCKER-CT -o br0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i br0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i br0 ! -o br0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-2 -o br0 -j DROP
-A DOCKER-USER -j RETURN
COMMIT
END`

// What kube-proxy writes for a service of two pods, with its marks.
const kubeProxy = `
iptables-restore <<END
*nat
:PREROUTING ACCEPT
:OUTPUT ACCEPT
:POSTROUTING ACCEPT
:KUBE-MARK-MASQ -
:KUBE-POSTROUTING -
:KUBE-SEP-A -
:KUBE-SEP-B -
:KUBE-SERVICES -
:KUBE-SVC-X -
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m udp --dport 53 -j KUBE-SVC-X
-A KUBE-SVC-X -m statistic --mode random --probability 0.5 -j KUBE-SEP-A
-A KUBE-SVC-X -j KUBE-SEP-B
-A KUBE-SEP-A -p udp -j DNAT --to-destination 10.9.0.2:53
-A KUBE-SEP-B -p udp -j DNAT --to-destination 10.9.0.3:53
COMMIT
*filter
:FORWARD ACCEPT
:KUBE-FORWARD -
:KUBE-PROXY-FIREWALL -
-A FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A FORWARD -j KUBE-FORWARD
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
END`

// ufw limits what it logs, behind what it knows.
const ufw = `
iptables-restore <<END
*filter
:FORWARD DROP
:ufw-before -
:ufw-after-logging -
-A FORWARD -j ufw-before
-A FORWARD -j ufw-after-logging
-A ufw-before -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before -i br0 -j ACCEPT
-A ufw-after-logging -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW BLOCK] "
COMMIT
END`

// Each ruleset, and what of it keeps packets from the express path.
func TestRulesets(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	build(t, place{})
	here := place{}
	forward := func(rules ...string) string {
		const rule = "nft 'add rule ip t forward "
		return "nft add table ip t\n" +
			"nft 'add chain ip t forward { type filter hook forward priority 0; }'\n" +
			rule + strings.Join(rules, "'\n"+rule) + "'"
	}
	s := attach(t)
	for _, c := range []struct{ name, rules, why, fresh string }{
		{name: "none"},
		{name: "Docker", rules: docker},
		{name: "kube-proxy", rules: kubeProxy},
		{name: "ufw: its limit is for what has not been answered, as it reads",
			rules: ufw, fresh: "limits how many packets"},
		{name: "a limit, behind what is known", rules: forward("ct state established accept",
			"limit rate 5/second accept"), fresh: "limits how many packets"},
		{name: "a limit", rules: forward("limit rate 5/second accept"), why: "limits how many packets"},
		{name: "a limit of other devices", rules: forward(`iifname "lo" limit rate 5/second accept`)},
		{name: "a limit of one way", rules: forward(`iifname "br0" oifname "nic" limit rate 5/second accept`),
			why: "limits how many packets"},
		{name: "length", rules: "iptables -A FORWARD -m length --length 100: -j DROP", why: "match length"},
		{name: "length of IPv4", rules: forward("ip length > 100 drop"), why: "bytes 2 to 3"},
		{name: "meta length", rules: forward("meta length > 100 drop"), why: "length of a packet"},
		{name: "TTL", rules: forward("ip ttl < 5 drop"), why: "bytes 8 to 8"},
		{name: "TOS is of the entry", rules: forward("ip dscp cs1 drop")},
		{name: "a quota", rules: forward("quota over 10 mbytes drop"), why: "how many bytes"},
		{name: "connbytes", rules: forward("ct bytes > 1000 drop"), why: "counts a connection's bytes"},
		{name: "statistic", rules: "iptables -A FORWARD -m statistic --mode random --probability 0.1 -j DROP",
			why: "statistic"},
		{name: "numgen", rules: forward("numgen random mod 2 == 0 drop"), why: "draws lots"},
		{name: "string", rules: "iptables -A FORWARD -m string --algo bm --string x -j DROP", why: "string"},
		{name: "u32", rules: `iptables -A FORWARD -m u32 --u32 "6&0xFF=1" -j DROP`, why: "u32"},
		{name: "time", rules: "iptables -A FORWARD -m time --timestart 10:00 -j DROP", why: "match time"},
		{name: "recent", rules: "iptables -A FORWARD -m recent --set -j ACCEPT", why: "recent"},
		{name: "a log", rules: forward("log"), why: "logs packets"},
		{name: "flags of TCP that differ", rules: forward("tcp flags & psh == psh drop"),
			why: "bytes 13 to 13"},
		{name: "flags of TCP that do not", rules: forward("tcp flags & (syn|rst) == syn limit rate 5/second drop")},
		{name: "TCPMSS", rules: "iptables -t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS " +
			"--clamp-mss-to-pmtu"},
		{name: "a set that packets fill", rules: "nft add table ip t\n" +
			"nft 'add set ip t s { type ipv4_addr; flags dynamic,timeout; timeout 1m; }'\n" +
			forward("ip saddr @s drop"), why: "has elements that end"},
		{name: "a set with a limit for each element", rules: "nft add table ip t\n" +
			"nft 'add set ip t s { type ipv4_addr; limit rate 5/second; }'\n" +
			forward("ip saddr @s drop"), why: "more for each packet"},
		{name: "a socket's user", rules: forward("meta skuid 0 drop"), why: "user"},
		{name: "ct label", rules: forward("ct label 1 drop"), why: "asks for labels"},
		{name: "a set", rules: "nft add table ip t\nnft 'add set ip t s { type ipv4_addr; }'\n" +
			forward("ip saddr @s drop")},
		{name: "a jump", rules: "nft add table ip t\nnft add chain ip t deep\n" +
			"nft add rule ip t deep limit rate 5/second accept\n" + forward("jump deep"),
			why: "limits how many packets"},
		{name: "a map of verdicts", rules: "nft add table ip t\nnft add chain ip t deep\n" +
			"nft add rule ip t deep limit rate 5/second accept\n" +
			forward("ip protocol vmap { tcp : jump deep }"), why: "limits how many packets"},
		{name: "behind a return, what is known is not all", rules: "nft add table ip t\n" +
			"nft add chain ip t deep\nnft add rule ip t deep ip saddr 10.9.0.2 return\n" +
			"nft add rule ip t deep ct state established accept\n" +
			forward("jump deep", "limit rate 5/second accept"), why: "limits how many packets"},
		{name: "a device's rules", rules: "nft add table netdev t\nnft 'add chain netdev t c " +
			"{ type filter hook ingress device p0 priority 0; }'\nnft add rule netdev t c limit rate 5/second accept",
			why: "limits how many packets"},
		{name: "a bridge's rules", rules: "nft add table bridge t\nnft 'add chain bridge t c " +
			"{ type filter hook forward priority 0; }'\nnft add rule bridge t c limit rate 5/second accept",
			why: "limits how many packets"},
		{name: "a limit of ICMP", rules: forward("ip protocol icmp limit rate 5/second accept")},
		{name: "a limit of TCP", rules: forward("ip protocol tcp limit rate 5/second accept"),
			why: "limits how many packets"},
		{name: "what comes in for the host", rules: "iptables -A INPUT -m limit --limit 3/min -j LOG"},
		{name: "a queue of the bridge", rules: "tc qdisc add dev br0 root pfifo", why: "would not wait in it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			here.run(t, "nft flush ruleset")
			defer here.run(t, "nft flush ruleset; tc qdisc del dev br0 root || true")
			if c.rules != "" {
				here.run(t, c.rules)
			}
			rules, err := readRuleset()
			if err != nil {
				t.Fatal(err)
			}
			all, err := s.refusals(rules)
			if err != nil {
				t.Fatal(err)
			}
			for _, fresh := range []bool{false, true} {
				want := c.why
				if fresh {
					want = c.fresh
				}
				is := func(r Refusal) bool {
					return r.Fresh == fresh && (want == "" || strings.Contains(r.Why, want))
				}
				if has := slices.ContainsFunc(all, is); has != (want != "") {
					t.Errorf("before an answer %v: %v, want %q", fresh, all, want)
				}
			}
		})
	}
}

// Tables of iptables-legacy stay in a network namespace: so they are tried in one of their own.
func TestIptablesLegacy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	p := newPlace(t)
	legacy := func() (all []Refusal) {
		p.do(t, func() error {
			rules, err := readRuleset()
			if err == nil {
				all = rules.refusals([]path{{in: "br0", out: "nic"}})
			}
			return err
		})
		return all
	}
	if all := legacy(); len(all) > 0 {
		t.Errorf("without rules: %v", all)
	}
	p.run(t, "iptables-legacy -A FORWARD -j ACCEPT")
	if all := legacy(); len(all) != 1 || !strings.Contains(all[0].Where, "iptables-legacy") {
		t.Errorf("with a rule of iptables-legacy: %v", all)
	}
}

// Who may not change rules is not told that they are whole.
func TestWhetherRulesAreWhole(t *testing.T) {
	told := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with its goroutine
		none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var all [2]unix.CapUserData
		if err := unix.Capset(&none, &all[0]); err != nil {
			told <- nil
			return
		}
		told <- settled()
	}()
	if err := <-told; !errors.Is(err, unix.EPERM) {
		t.Errorf("without the right to: %v", err)
	}
}
