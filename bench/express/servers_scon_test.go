//go:build scon

package express

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/netns"
)

// What kube-proxy writes for a service of two pods, beside Docker's rules.
const kubeProxy = `*nat
:KUBE-MARK-MASQ -
:KUBE-POSTROUTING -
:KUBE-SEP-A -
:KUBE-SEP-B -
:KUBE-SERVICES -
:KUBE-SVC-X -
-I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-I POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-X
-A KUBE-SVC-X -m statistic --mode random --probability 0.5 -j KUBE-SEP-A
-A KUBE-SVC-X -j KUBE-SEP-B
-A KUBE-SEP-A -p tcp -j DNAT --to-destination 10.9.0.2:80
-A KUBE-SEP-B -p tcp -j DNAT --to-destination 10.9.0.2:80
COMMIT
*filter
:KUBE-FORWARD -
:KUBE-PROXY-FIREWALL -
-I FORWARD -j KUBE-FORWARD
-I FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
`

// What Docker writes for the broker, whose port is published.
const publishBroker = `*nat
-A DOCKER ! -i br0 -p tcp -m tcp --dport 1883 -j DNAT --to-destination 10.9.0.3:1883
COMMIT
*filter
-I DOCKER -d 10.9.0.3/32 ! -i br0 -o br0 -p tcp -m tcp --dport 1883 -j ACCEPT
COMMIT
`

// The rules that change under load: each is made and undone.
var changes = [][2]string{
	{ // a container is started with a published port, and is ended
		"iptables -t nat -A DOCKER ! -i br0 -p tcp --dport 9000 -j DNAT --to 10.9.0.4:9000; " +
			"iptables -I DOCKER -d 10.9.0.4 ! -i br0 -o br0 -p tcp --dport 9000 -j ACCEPT",
		"iptables -t nat -D DOCKER ! -i br0 -p tcp --dport 9000 -j DNAT --to 10.9.0.4:9000; " +
			"iptables -D DOCKER -d 10.9.0.4 ! -i br0 -o br0 -p tcp --dport 9000 -j ACCEPT"},
	{ // an address is blocked
		"iptables -I DOCKER-USER -s 203.0.113.9 -j DROP",
		"iptables -D DOCKER-USER -s 203.0.113.9 -j DROP"},
	{ // a rule that asks for each packet: all are regular
		"iptables -I DOCKER-USER -m length --length 0:20 -j DROP",
		"iptables -D DOCKER-USER -m length --length 0:20 -j DROP"},
	{ // marks
		"iptables -t mangle -A PREROUTING -i br0 -j MARK --set-mark 7",
		"iptables -t mangle -D PREROUTING -i br0 -j MARK --set-mark 7"},
	{"ip route add 203.0.113.0/24 via 198.18.0.1", "ip route del 203.0.113.0/24"},
	{"ip rule add fwmark 99 table 99", "ip rule del fwmark 99 table 99"},
}

// nginx and mosquitto in containers serve while rules change: no connection is reset, and no packet
// has an address that it should not have. Beside kube-proxy its rules are written anew, too.
func TestServersWhileRulesChange(t *testing.T) {
	if os.Getenv(inside) == "" {
		t.Skip("needs root")
	}
	for _, tool := range []string{"nginx", "mosquitto", "iptables", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("FASTIOV_CI") != "" {
				t.Fatal(err)
			}
			t.Skipf("%v: apt-get install nginx-light mosquitto iptables iproute2", err)
		}
	}
	h, err := newHost(Arms[armNamed(Express)])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.close)
	debug.SetGCPercent(100)
	restore(t, publishBroker)
	if _, _, err := h.nginx(); err != nil {
		t.Fatal(err)
	}
	broker := netip.MustParseAddr("10.9.0.3")
	if _, _, err := h.mosquitto(h.containers[1], broker); err != nil {
		t.Fatal(err)
	}
	if _, err := h.file("1M", strings.Repeat("x", 1<<20)); err != nil {
		t.Fatal(err)
	}
	watch(t, h.server, "wire", hostAddr)
	watch(t, h.containers[0], "eth0", serverAddr)
	watch(t, h.containers[1], "eth0", serverAddr)
	t.Run("beside Docker", func(t *testing.T) { h.serveWhileRulesChange(t, changes) })
	restore(t, kubeProxy)
	t.Run("beside kube-proxy", func(t *testing.T) {
		h.serveWhileRulesChange(t, append(changes, [2]string{
			"iptables-restore --noflush <<END\n" + withoutHooks(kubeProxy) + "END", "true"}))
	})
	for place, in := range map[string]*os.File{"the server": h.server,
		"nginx's container": h.containers[0], "mosquitto's container": h.containers[1]} {
		for what, n := range counted(t, in) {
			if n > 0 {
				t.Errorf("%s: %d packets of the kind %s", place, n, what)
			}
		}
	}
	h.wrong(t)
}

// wrong is the control: a reset and a packet that nobody translates are counted.
func (h *host) wrong(t *testing.T) {
	shut := netip.AddrPortFrom(serverAddr, 1)
	fd, err := socket(h.containers[0], unix.SOCK_STREAM)
	if err != nil || connect(fd, shut) == nil {
		t.Fatalf("somebody listens at %s: %v", shut, err)
	}
	if out, err := shell(nil, "iptables -t nat -D POSTROUTING -s 10.9.0.0/24 ! -o br0"+
		" -j MASQUERADE"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if fd, err = socket(h.containers[1], unix.SOCK_DGRAM); err == nil {
		err = connect(fd, shut)
	}
	if err == nil {
		err = send(fd, []byte("from a container's own address"))
	}
	if err != nil {
		t.Fatal(err)
	}
	server, container := counted(t, h.server), counted(t, h.containers[0])
	if server["own-reset"] == 0 || container["reset"] == 0 || server["address"] == 0 {
		t.Errorf("the counters miss what is wrong: %v, %v", server, container)
	}
}

func armNamed(name string) int {
	for n, arm := range Arms {
		if arm.Name == name {
			return n
		}
	}
	return -1
}

// withoutHooks leaves out the rules that are there already, as kube-proxy does.
func withoutHooks(rules string) (text string) {
	for line := range strings.Lines(rules) {
		if !strings.HasPrefix(line, "-I") {
			text += line
		}
	}
	return text
}

func restore(t *testing.T, rules string) {
	t.Helper()
	cmd := exec.Command("iptables-restore", "--noflush")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func shell(in *os.File, script string) (out []byte, err error) {
	run := func() error {
		out, err = exec.Command("sh", "-ec", script).CombinedOutput()
		return err
	}
	if in == nil {
		return out, run()
	}
	return out, netns.Inside(in, run)
}

// watch counts resets, and packets that come from anybody but one, where they arrive.
func watch(t *testing.T, in *os.File, device string, from netip.Addr) {
	t.Helper()
	if out, err := shell(in, fmt.Sprintf(`
iptables -t raw -A PREROUTING -i %[1]s -p tcp --tcp-flags RST RST -m comment --comment reset
iptables -t raw -A OUTPUT -p tcp --tcp-flags RST RST -m comment --comment own-reset
iptables -t raw -A PREROUTING -i %[1]s ! -s %[2]s ! -d 224.0.0.0/4 \
	-m comment --comment address`, device,
		from)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func counted(t *testing.T, in *os.File) map[string]int {
	t.Helper()
	out, err := shell(in, "iptables-save -c -t raw")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	all := map[string]int{}
	for line := range strings.Lines(string(out)) {
		_, comment, is := strings.Cut(strings.TrimSpace(line), "--comment ")
		count, _, _ := strings.Cut(strings.TrimPrefix(line, "["), ":")
		if n, err := strconv.Atoi(count); is && err == nil {
			all[comment] += n
		}
	}
	if len(all) != 3 {
		t.Fatalf("the counters are %v:\n%s", all, out)
	}
	return all
}

// serveWhileRulesChange makes each change some times under load.
func (h *host) serveWhileRulesChange(t *testing.T, all [][2]string) {
	var loads sync.WaitGroup
	var stop atomic.Bool
	var served [3]atomic.Int64
	before := h.packets()
	under := func(n int, ready func() (one func() error, err error)) {
		one, err := ready()
		if err != nil {
			t.Fatal(err)
		}
		loads.Go(func() {
			for !stop.Load() {
				if err := one(); err != nil {
					t.Error(err)
					return
				}
				served[n].Add(1)
			}
		})
	}
	for _, file := range []string{"64", "64", "1M"} {
		under(0, func() (func() error, error) { return h.get(t, file) })
	}
	under(1, func() (func() error, error) { return h.publish(t) })
	under(2, func() (func() error, error) { return h.outward(t) })
	const times = 8
	rnd := rand.New(rand.NewPCG(22, uint64(len(all))))
	made := 0
	for range times {
		for _, n := range rnd.Perm(len(all)) {
			for _, script := range all[n] {
				if out, err := shell(nil, script); err != nil {
					t.Errorf("%s: %v: %s", script, err, out)
				}
				made++
				time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
			}
		}
	}
	stop.Store(true)
	loads.Wait()
	express := h.packets() - before
	t.Logf("%d changes: %d pages, %d messages, %d answers to a container; %d packets went express",
		made, served[0].Load(), served[1].Load(), served[2].Load(), express)
	for n := range served {
		if served[n].Load() < 100 || express < 1000 {
			t.Errorf("hardly any load: %d of kind %d, %d packets express: %v", served[n].Load(), n,
				express, h.scon.Refused())
		}
	}
}

// get returns what asks nginx for a file, by one connection.
func (h *host) get(t *testing.T, file string) (func() error, error) {
	fd, err := reach(h.server, netip.AddrPortFrom(hostAddr, publishedPort))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { unix.Close(fd) })
	one, err := asks(fd, file)
	return func() error {
		if err := one(); err != nil {
			return fmt.Errorf("nginx, %s: %w", file, err)
		}
		return nil
	}, err
}

// publish returns what has the server publish by the broker in its container, and hear it.
func (h *host) publish(t *testing.T) (func() error, error) {
	at := netip.AddrPortFrom(hostAddr, brokerPort)
	var ends [2]int
	for n, name := range []string{"subscriber", "publisher"} {
		fd, err := joined(h.server, at, name+t.Name())
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { unix.Close(fd) })
		ends[n] = fd
	}
	if err := subscribe(ends[0]); err != nil {
		return nil, err
	}
	message := published(make([]byte, page64))
	heard := make([]byte, len(message))
	return func() error {
		if err := send(ends[1], message); err != nil {
			return err
		}
		return hearAll(ends[0], heard)
	}, nil
}

// outward returns what has a container ask the server by UDP, which always hears the host.
func (h *host) outward(t *testing.T) (func() error, error) {
	client, server, err := h.connected(0, "udp")
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { unix.Close(client); unix.Close(server) })
	b := make([]byte, 100)
	peer := ""
	return func() error {
		if err := send(client, b); err != nil {
			return err
		}
		_, from, err := unix.Recvfrom(server, b, 0)
		if err != nil {
			return err
		}
		is, _ := from.(*unix.SockaddrInet4)
		now := fmt.Sprint(netip.AddrFrom4(is.Addr), ":", is.Port)
		if peer == "" {
			peer = now
		}
		if now != peer || netip.AddrFrom4(is.Addr) != hostAddr {
			return fmt.Errorf("the server heard %s, and %s before", now, peer)
		}
		if err := send(server, b); err != nil {
			return err
		}
		return hearAll(client, b)
	}, nil
}
