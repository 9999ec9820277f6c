//go:build scon

package scon

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A bench for one frame after the other: a triple with SCON, and raw ends.
type wired struct {
	triple
	t                 *testing.T
	s                 *Scon
	container, server *tap
	rnd               *rand.Rand
	id                uint16
}

func wire(t *testing.T) *wired {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	w := &wired{triple: build(t, place{}), t: t, rnd: rand.New(rand.NewPCG(1, 2))}
	for _, end := range []place{w.triple.container, w.triple.server} {
		end.run(t, "iptables -P INPUT DROP; iptables -P OUTPUT DROP")
	}
	w.container = w.triple.container.tap(t, "eth0")
	w.server = w.triple.server.tap(t, "wire")
	w.s = attach(t)
	return w
}

// How long a frame is awaited: one that has to come, and one that may not.
const (
	surely = 5 * time.Second
	soon   = 200 * time.Millisecond
)

// pass sends a frame of the flow, and returns what came out, and whether it went express.
func (w *wired) pass(f *flow, outward bool, s shape) (out [][]byte, express bool) {
	w.t.Helper()
	return w.send(f, outward, s, surely)
}

// refuse fails unless a frame of the flow is dropped on the regular path.
func (w *wired) refuse(f *flow, outward bool, s shape) {
	w.t.Helper()
	if out, express := w.send(f, outward, s, soon); express || len(out) > 0 {
		w.t.Fatalf("outward %v: express %v, %d frames came out", outward, express, len(out))
	}
}

func (w *wired) send(f *flow, outward bool, s shape, within time.Duration) (out [][]byte,
	express bool) {
	w.t.Helper()
	if s.ttl == 0 {
		s.ttl = 64
	}
	w.id++
	s.id = w.id
	before := w.s.Counts()["express"]
	w.drain()
	from, to := w.server, w.container
	if outward {
		from, to = w.container, w.server
	}
	from.send(w.t, f.frame(outward, s, w.rnd))
	out = to.await(w.t, within)
	return out, w.s.Counts()["express"] > before
}

func (w *wired) drain() {
	w.container.heard(w.t)
	w.server.heard(w.t)
}

// established makes a flow whose packets go express in both directions.
func (w *wired) established(f *flow) *flow {
	w.t.Helper()
	if f.tcp {
		w.pass(f, !f.published, shape{flags: "S"})
		w.pass(f, f.published, shape{flags: "SA"})
		w.pass(f, !f.published, shape{flags: "A"})
	}
	for n := range 3 { // who asks is the client, and who answers the server
		if n == 1 && !f.tcp {
			time.Sleep(young)
		}
		w.pass(f, !f.published, shape{size: 10})
		w.pass(f, f.published, shape{size: 10})
	}
	w.wantExpress(f, true)
	return f
}

func (w *wired) wantExpress(f *flow, want bool) {
	w.t.Helper()
	for _, outward := range []bool{true, false} {
		var out [][]byte
		express := false
		w.pass(f, outward, shape{size: 10}) // makes an entry
		w.oneOfFive(func() bool {
			out, express = w.pass(f, outward, shape{size: 10})
			return express || !want
		})
		if express != want || want && len(out) != 1 {
			w.t.Fatalf("outward %v: express %v, %d frames came out; want %v; %v, %v", outward,
				express, len(out), want, w.s.Counts(), w.s.Refused())
		}
	}
}

// oneOfFive reports whether a packet of a flow with an entry goes express. On a slow machine each
// before it may be the second's sample, and one the first that conntrack takes for a stream's: by
// another reason none may be regular.
func (w *wired) oneOfFive(goesExpress func() bool) bool {
	w.t.Helper()
	before := w.s.Counts()
	for n := range 5 {
		if !goesExpress() {
			continue
		}
		now := w.s.Counts()
		samples := now["sample"] - before["sample"]
		connections := min(now["connection"]-before["connection"], 1)
		if samples+connections < uint64(n) {
			w.t.Errorf("%d packets were regular before one went express: %v, and before %v", n,
				now, before)
		}
		return true
	}
	return false
}

// becomes waits until the flow goes express, or does not any more, of which nobody tells.
func (w *wired) becomes(f *flow, express bool) {
	w.t.Helper()
	for late := time.Now().Add(20 * time.Second); time.Now().Before(late); {
		if _, is := w.pass(f, true, shape{size: 10}); is == express {
			break
		}
	}
	w.wantExpress(f, express)
}

func (w *wired) permitted() {
	w.t.Helper()
	until := time.Now().Add(5 * time.Second)
	for ; time.Now().Before(until); time.Sleep(time.Millisecond) {
		if g, err := w.s.generation(); err == nil {
			var p programPermit
			if w.s.programs.Permits.Lookup(uint32(0), &p) == nil && p.Established == g.Rules {
				return
			}
		}
	}
	w.t.Fatal("the rules are not permitted")
}

func kinds() []*flow {
	return []*flow{{port: 20001}, {port: 20002, published: true}, {tcp: true, port: 20003},
		{tcp: true, port: 20004, published: true}}
}

// After a rule has been written, no packet goes by the one before it.
func TestAChangeOfRulesHoldsAtOnce(t *testing.T) {
	w := wire(t)
	for _, f := range kinds() {
		w.established(f)
		for range 5 {
			w.host.run(t, "iptables -I FORWARD -j DROP")
			for _, outward := range []bool{true, false} {
				w.refuse(f, outward, shape{size: 10})
			}
			w.host.run(t, "iptables -D FORWARD 1")
			w.permitted()
			w.wantExpress(f, true)
		}
	}
}

// A flow that nobody answers goes express a while after its first packet, as long as the rules are
// as they were and until it is answered.
func TestAFlowWithoutAnAnswer(t *testing.T) {
	w := wire(t)
	f := &flow{port: 20001}
	outward := func() bool {
		out, express := w.pass(f, true, shape{size: 10})
		if len(out) != 1 {
			t.Fatalf("%d frames came out", len(out))
		}
		return express
	}
	outward()
	if n := len(w.entries()); n > 0 {
		t.Errorf("a flow that has just begun has %d entries", n)
	}
	time.Sleep(young)
	outward()
	if !w.oneOfFive(outward) {
		t.Fatalf("a packet of a flow that nobody answers is regular: %v", w.s.Counts())
	}
	w.host.run(t, "iptables -I FORWARD -j DROP")
	w.refuse(f, true, shape{size: 10})
	w.host.run(t, "iptables -D FORWARD 1")
	w.permitted()
	outward()
	if !w.oneOfFive(outward) {
		t.Fatalf("a packet is regular: %v", w.s.Counts())
	}
	w.pass(f, false, shape{size: 10})
	if outward() {
		t.Error("a packet went express by an entry of before the answer")
	}
	w.wantExpress(f, true)
}

// After a route has been changed, no packet goes by the one before it.
func TestAChangeOfRoutesHoldsAtOnce(t *testing.T) {
	w := wire(t)
	for _, f := range kinds() {
		w.established(f)
		w.host.run(t, "ip route add prohibit 198.18.0.1")
		w.refuse(f, true, shape{size: 10})
		w.host.run(t, "ip route del prohibit 198.18.0.1")
		w.wantExpress(f, true)
	}
}

// A connection that conntrack has forgotten has ended.
func TestAFlushOfConntrackHoldsAtOnce(t *testing.T) {
	w := wire(t)
	for _, f := range kinds() {
		w.established(f)
		w.host.run(t, "conntrack -F")
		if _, express := w.pass(f, !f.published, shape{size: 10}); express {
			t.Fatal("a packet went express by a connection that is gone")
		}
	}
}

// The memory of a conntrack entry is another's after a while, which may have the same source.
func TestAConntrackEntryIsKnownWhole(t *testing.T) {
	w := wire(t)
	w.host.run(t, "ip route add 203.0.113.0/24 via 198.18.0.1")
	f := w.established(&flow{port: 20001})
	onOneCPU(t) // so that the kernel takes the memory that it has just freed
	question := f.frame(true, shape{ttl: 64, size: 10}, w.rnd)
	answer := f.frame(false, shape{ttl: 64, size: 10}, w.rnd)
	for n := range 100 {
		other := []byte{203, 0, 113, byte(n)}
		copy(question[14+16:], other)
		copy(answer[14+12:], other)
		reseal(question)
		reseal(answer)
		w.host.run(t, "conntrack -F")
		w.container.send(t, question)
		w.server.send(t, answer)
		before := w.s.Counts()["express"]
		w.server.send(t, f.frame(false, shape{ttl: 64, size: 10}, w.rnd))
		w.container.await(t, 10*time.Millisecond)
		if w.s.Counts()["express"] > before {
			t.Fatal("a packet went express by another connection's entry")
		}
		w.established(f)
	}
}

// onOneCPU keeps the test, and what it executes, on one CPU until it ends.
func onOneCPU(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // and the thread ends with the test's goroutine
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for cpu := range 1024 {
		if all.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
}

// reseal has the checksums of a UDP frame hold again.
func reseal(frame []byte) {
	frame[14+10], frame[14+11], frame[14+26], frame[14+27] = 0, 0, 0, 0
	var sum uint32
	for i := 14; i < 34; i += 2 {
		sum += uint32(frame[i])<<8 | uint32(frame[i+1])
	}
	for sum>>16 > 0 {
		sum = sum&0xffff + sum>>16
	}
	frame[14+10], frame[14+11] = ^byte(sum>>8), ^byte(sum)
}

// A busy flow keeps its conntrack entry, and with that its port: packets on the express path do not
// refresh it, those on the regular one each second do.
func TestABusyFlowKeepsItsConnection(t *testing.T) {
	for name, as := range map[string]func(*Config){"leases": func(*Config) {}, "by age": byAge} {
		t.Run(name, func(t *testing.T) {
			w := build(t, place{})
			w.host.run(t, `sysctl -qw net.netfilter.nf_conntrack_udp_timeout=2 \
				net.netfilter.nf_conntrack_udp_timeout_stream=2`)
			t.Cleanup(func() { // the tests after it have the same host
				w.host.run(t, `sysctl -qw net.netfilter.nf_conntrack_udp_timeout=30 \
				net.netfilter.nf_conntrack_udp_timeout_stream=120`)
			})
			s := attach(t, as)
			w.server.echo(t, "198.18.0.1:7")
			conn := w.container.dial(t, "udp4", "198.18.0.1:7")
			ids := map[string]bool{}
			for until := time.Now().Add(5 * time.Second); time.Now().Before(until); {
				ask(t, conn, 20, 10)
				ids[w.connections(t)] = true
				time.Sleep(20 * time.Millisecond)
			}
			kept := len(ids) == 1 && !ids[""]
			if want := name == "leases"; kept != want {
				t.Errorf("the connection was kept: %v, want %v: %v", kept, want, ids)
			}
			if s.Counts()["express"] < 100 {
				t.Errorf("too few packets went express: %v", s.Counts())
			}
		})
	}
}

// connections lists conntrack's UDP entries by their numbers.
func (w triple) connections(t *testing.T) string {
	t.Helper()
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, f := range flows {
		if f.Forward.Protocol == unix.IPPROTO_UDP && f.Forward.DstPort == 7 {
			text += fmt.Sprint(f.TimeStart, f.Forward.SrcPort, f.Reverse.DstPort)
		}
	}
	return text
}

// Where conntrack counts each byte of TCP, it would reset what it does not see whole.
func TestTCPStaysRegularWhereConntrackTracksWindows(t *testing.T) {
	w := wire(t)
	w.host.run(t, "sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=0")
	f := &flow{tcp: true, port: 20001}
	for _, flags := range []string{"S", "SA", "A"} {
		w.pass(f, flags != "SA", shape{flags: flags})
	}
	w.wantExpress(f, false)
	w.host.run(t, "sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=1")
	w.wantExpress(f, true)
	w.host.run(t, "sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=0")
	if _, express := w.pass(f, true, shape{size: 10}); express {
		t.Error("a packet went express that conntrack will miss")
	}
}

// A reset behind data that conntrack has not seen is translated all the same.
func TestAResetIsTranslated(t *testing.T) {
	w := wire(t)
	for _, outward := range []bool{true, false} {
		f := w.established(&flow{tcp: true, port: 20001 + uint16(w.rnd.IntN(1000))})
		for range 300 {
			w.pass(f, true, shape{size: 1000})
			w.pass(f, false, shape{size: 1000})
		}
		out, express := w.pass(f, outward, shape{flags: "R"})
		if express || len(out) != 1 {
			t.Fatalf("outward %v: a reset went express: %v, and %d came out", outward, express,
				len(out))
		}
		if from := net.IP(out[0][14+12 : 14+16]); outward && !from.Equal(hostIP) {
			t.Errorf("a reset left with the address %s", from)
		}
	}
}

// A connection that conntrack has picked up in its middle goes express only when conntrack knows
// what both ends have acknowledged. Without that any RST would end it there, a SYN behind that
// would be another connection, and what the first one sends on would leave without a translation.
func TestAResetOutsideOfTheWindowsEndsNothing(t *testing.T) {
	w := wire(t)
	for n, published := range []bool{false, true} {
		f := w.established(&flow{tcp: true, published: published, port: 20001 + uint16(n),
			seq: [2]uint32{1000, 1000}})
		w.host.run(t, "conntrack -F")
		// Neither of the first two has a window to be in, so conntrack keeps nothing of the
		// second, and does not know what the answer acknowledges.
		for _, began := range []bool{true, true, false, true, true, false} {
			w.pass(f, began != published, shape{size: 10})
		}
		w.pass(f, !published, shape{flags: "R", seqOff: 1 << 30})
		w.pass(f, !published, shape{flags: "S"})
		w.translates(f)

		f = w.established(&flow{tcp: true, published: published, port: 20101 + uint16(n)})
		w.host.run(t, "conntrack -F")
		for range 3 {
			w.pass(f, !published, shape{size: 10})
			w.pass(f, published, shape{size: 10})
		}
		w.wantExpress(f, true)
	}
}

// A dropped packet's verdict is not kept: it may be due to the state of its connection, which the
// next packet changes.
func TestADropIsNotKept(t *testing.T) {
	w := wire(t)
	f := &flow{port: 20001}
	for range 3 {
		w.refuse(f, false, shape{size: 10}) // an answer without a question
	}
	w.pass(f, true, shape{size: 10})
	if out, _ := w.pass(f, false, shape{size: 10}); len(out) != 1 {
		t.Error("an answer was dropped by a verdict of before")
	}
}

// A rule that asks for each packet's length turns the express path off, at once and by its name.
func TestARuleForEachPacketTurnsItOff(t *testing.T) {
	w := wire(t)
	f := w.established(&flow{port: 20001})
	w.host.run(t, "iptables -I FORWARD -m length --length 500: -j DROP")
	for range 20 {
		w.refuse(f, true, shape{size: 600})
		w.pass(f, true, shape{size: 10})
	}
	is := func(r Refusal) bool { return strings.Contains(r.Where, "ip filter FORWARD, rule") }
	if !slices.ContainsFunc(w.s.Refused(), is) {
		t.Errorf("the rule is not named: %v", w.s.Refused())
	}
	w.host.run(t, "iptables -D FORWARD 1")
	w.permitted()
	w.wantExpress(f, true)
}

// Bytes behind a short frame's packet are not sent on, and do not count as its size.
func TestPaddingIsLeftOut(t *testing.T) {
	w := wire(t)
	f := w.established(&flow{port: 20001})
	if !w.oneOfFive(func() bool {
		out, express := w.pass(f, false, shape{size: 2, padding: 16})
		if len(out) != 1 || len(out[0]) != 14+20+8+2 {
			t.Errorf("express %v, %x came out", express, out)
		}
		return express
	}) {
		t.Error("it is regular")
	}
}

// A frame that the bridge would not take from that MAC, or that is not for the router, is regular.
func TestAnotherMACIsRegular(t *testing.T) {
	w := wire(t)
	f := w.established(&flow{port: 20001})
	for _, outward := range []bool{true, false} {
		w.refuse(f, outward, shape{size: 10, otherMAC: true})
	}
}

// A bridge that does not know where a MAC is sends a packet to all ports, and the last one gets the
// original: the entry is that of the container's port all the same.
func TestAFloodedPacketLeadsToNoOtherPort(t *testing.T) {
	w := wire(t)
	others := map[string]*tap{}
	for n, name := range []string{"p1", "p2"} {
		p := newPlace(t)
		w.host.port(t, p, name, fmt.Sprintf("02:00:00:00:00:%02d", 3+n),
			fmt.Sprintf("10.9.0.%d", 3+n))
		others[name] = p.tap(t, "eth0")
	}
	// The last port of the kernel's list is the first that came: it gets the original.
	w.host.run(t, "ip link set p0 nomaster; sleep 0.1; ip link set p0 master br0")
	w.host.run(t, "for p in p0 p1 p2; do bridge link set dev $p learning off; done; sleep 0.1")
	f := &flow{port: 20001}
	for range 5 {
		w.pass(f, true, shape{size: 10})
		w.pass(f, false, shape{size: 10})
	}
	for _, other := range others {
		other.heard(t)
	}
	for range 20 {
		if out, _ := w.pass(f, false, shape{size: 10}); len(out) != 1 {
			t.Fatal("a packet led elsewhere")
		}
	}
}

// Marks and priorities that rules give go with express packets: a queue behind the NIC sees them.
func TestMarksGoAlong(t *testing.T) {
	w := wire(t)
	w.host.run(t, `iptables -t mangle -A POSTROUTING -o nic -j MARK --set-mark 5
iptables -t mangle -A PREROUTING -i br0 -j MARK --set-mark 3`)
	w.permitted()
	f := w.established(&flow{port: 20001})
	var e programConentry
	for _, key := range w.entries() {
		if err := w.s.programs.Conentries.Lookup(key, &e); err != nil {
			t.Fatal(err)
		}
		if want := uint32(5) * uint32(e.Neighbour); e.Mark != want {
			t.Errorf("mark %d, want %d", e.Mark, want)
		}
	}
	w.wantExpress(f, true)
}

// UDP without a sum stays without one, also where a sum is to be made later: a tunnel's, of the
// packet within.
func TestATunnelHasNoSum(t *testing.T) {
	w := wire(t)
	w.triple.container.run(t, `iptables -P OUTPUT ACCEPT
ip link add vx type vxlan id 7 remote 198.18.0.1 local 10.9.0.2 dstport 4789 dev eth0 noudpcsum
ip addr add 192.0.2.1/24 dev vx && ip link set vx up
ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:99 dev vx`)
	before, sums, tunnelled := w.s.Counts()["express"], 0, 0
	w.drain()
	w.triple.container.do(t, func() error {
		conn, err := net.Dial("udp4", "192.0.2.2:9")
		if err != nil {
			return err
		}
		defer conn.Close()
		for range 20 {
			if _, err := conn.Write([]byte("within")); err != nil {
				return err
			}
			time.Sleep(20 * time.Millisecond) // nobody answers
		}
		return nil
	})
	const port, sum = 14 + 20 + 2, 14 + 20 + 6
	for late := time.Now().Add(time.Minute); tunnelled < 10 && time.Now().Before(late); {
		for _, frame := range w.server.await(t, surely) {
			if len(frame) > sum+2 && binary.BigEndian.Uint16(frame[port:]) == 4789 {
				if tunnelled++; binary.BigEndian.Uint16(frame[sum:]) != 0 {
					sums++
				}
			}
		}
	}
	if n := w.s.Counts()["express"] - before; n < 10 || tunnelled < 10 || sums > 0 {
		t.Errorf("%d packets went express, %d of %d have a sum; %v", n, sums, tunnelled,
			w.s.Counts())
	}
}
