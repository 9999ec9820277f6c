//go:build scon

package scon

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// TestSameFrames sends the same frames through two hosts that are alike but for SCON, makes the
// same changes to both, and compares what comes out, byte by byte. FASTIOV_TEST_SCON_FRAMES says
// how many, FASTIOV_TEST_SCON_SEED which.
func TestSameFrames(t *testing.T) {
	frames, seed := number("FASTIOV_TEST_SCON_FRAMES", 20000), number("FASTIOV_TEST_SCON_SEED", 31)
	t.Logf("seed %d", seed)
	f := newFuzz(t, uint64(seed))
	for n := range frames {
		if f.rnd.IntN(60) == 0 {
			f.change()
		}
		f.one()
		if t.Failed() {
			t.Fatalf("seed %d, frame %d: %v", seed, n, f.counts())
		}
	}
	counts := f.counts()
	t.Logf("%d frames, %d changes, %d agents killed, %d known differences, %d by limits, %v",
		frames, f.changes, f.killed, f.known, f.limited, counts)
	// In 90,000 frames of three seeds neither was found once. About 70 flows in 20,000 frames go
	// on behind a RST: a fault in one of ten of these exceeds the bound.
	few := frames/5000 + 1
	if f.limited > few {
		t.Errorf("%d errors by routes came from one host alone: that is no limit's", f.limited)
	}
	if f.known > few {
		t.Errorf("%d differences behind a RST are no longer the seldom one that is known", f.known)
	}
	if counts["express"] < uint64(frames)/5 {
		t.Errorf("%d of %d frames went express: the rest says nothing", counts["express"], frames)
	}
}

// TestByAgeAlone is the control: entries that hold by their age, as the paper has them. The
// comparison has to fail.
func TestByAgeAlone(t *testing.T) {
	f := newFuzz(t, 7, byAge)
	f.differs = func(what string) { f.found++; t.Log(what) }
	for n := range 20000 {
		if f.rnd.IntN(60) == 0 {
			f.change()
		}
		if f.one(); f.found > 0 {
			t.Logf("differs at frame %d", n)
			return
		}
	}
	t.Error("entries that hold by their age alone are let pass")
}

func byAge(cfg *Config) { cfg.ByAge = true }

func number(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

type fuzz struct {
	t       *testing.T
	rnd     *rand.Rand
	twins   [2]triple // the first has SCON
	cfg     Config
	agent   *exec.Cmd // nil: it has been killed
	killed  int
	taps    [2][2]*tap // of a twin: at the container, at the server
	pending [2]map[string]int
	flows   []*flow
	port    uint16
	sent    uint16 // of the flow whose frame is on its way
	id      uint16
	undo    map[string]string // of changes that are in force
	changes int
	found   int
	// Behind a reset one twin's conntrack may take a connection for ended, and the other's not:
	// see behindReset.
	reset   bool // of the flow whose frame is on its way
	known   int
	limited int             // see errorsAlone
	natted  map[uint16]bool // flows that a change gave the host's port 7777
	// Whether a route prohibited packets when the twins were compared before.
	prohibited bool
	differs    func(what string)
}

func newFuzz(t *testing.T, seed uint64, as ...func(*Config)) *fuzz {
	f := &fuzz{t: t, rnd: rand.New(rand.NewPCG(seed, 22)), port: firstPort,
		undo: map[string]string{}, natted: map[uint16]bool{}}
	f.differs = func(what string) { t.Error(what) }
	f.twins[0], f.twins[1] = build(t, place{}), build(t, newPlace(t))
	for i, w := range f.twins {
		for _, end := range []place{w.container, w.server} {
			end.run(t, "iptables -P INPUT DROP; iptables -P OUTPUT DROP")
		}
		w.host.run(t, `sysctl -qw net.netfilter.nf_conntrack_udp_timeout=600 \
			net.netfilter.nf_conntrack_udp_timeout_stream=600`)
		f.taps[i] = [2]*tap{w.container.tap(t, "eth0"), w.server.tap(t, "wire")}
	}
	f.cfg = config(t)
	for _, change := range as {
		change(&f.cfg)
	}
	f.start()
	t.Cleanup(func() {
		for _, undo := range f.undo { // the next test has that host, too
			f.apply(undo)
		}
		f.kill()
		if err := Detach(f.cfg.Records, f.cfg.Bridge); err != nil {
			t.Error(err)
		}
	})
	f.pending = [2]map[string]int{{}, {}}
	for range 6 {
		f.flows = append(f.flows, f.fresh())
	}
	return f
}

// The agent is a process of its own, which may be killed at any time.
const followed = "FASTIOV_TEST_SCON_FOLLOWED"

// start starts the agent, or another one, which takes over.
func (f *fuzz) start() {
	f.t.Helper()
	text, err := json.Marshal(f.cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	f.agent = exec.Command("/proc/self/exe")
	f.agent.Env = append(os.Environ(), followed+"="+string(text))
	f.agent.Stderr = f.t.Output()
	f.agent.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := f.agent.StdoutPipe()
	if err == nil {
		err = f.agent.Start()
	}
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		f.t.Fatalf("the agent follows nothing: %v", err)
	}
}

func (f *fuzz) kill() {
	if f.agent != nil {
		_ = f.agent.Process.Kill()
		_ = f.agent.Wait()
		f.agent = nil
		f.killed++
	}
}

// init is the agent, in a process that start has made.
func init() {
	text := os.Getenv(followed)
	if text == "" {
		return
	}
	cfg := Config{Log: slog.New(slog.DiscardHandler)}
	err := json.Unmarshal([]byte(text), &cfg)
	if err == nil {
		_, err = Attach(cfg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("attached")
	select {}
}

func (f *fuzz) counts() map[string]uint64 {
	view, err := Open(f.cfg.Records, f.cfg.Bridge)
	if err != nil {
		f.t.Fatal(err)
	}
	all, err := view.Counts()
	if err != nil {
		f.t.Fatal(err)
	}
	return all
}

// apply makes a change at both hosts; of the agent, at the one that has it.
func (f *fuzz) apply(script string) {
	switch script {
	case killAgent:
		f.kill()
	case startAgent:
		f.start()
	default:
		for _, w := range f.twins {
			w.host.run(f.t, script)
		}
	}
}

const killAgent, startAgent = "kill -9 AGENT", "AGENT &"

func (f *fuzz) fresh() *flow {
	f.port++
	return &flow{tcp: f.rnd.IntN(2) == 0, published: f.rnd.IntN(3) == 0, port: f.port,
		seq: [2]uint32{f.rnd.Uint32(), f.rnd.Uint32()}}
}

// one sends a frame at both twins, and compares.
func (f *fuzz) one() {
	which := f.rnd.IntN(len(f.flows))
	if f.rnd.IntN(150) == 0 {
		f.flows[which] = f.fresh()
	}
	flow := f.flows[which]
	f.sent = flow.port
	outward := f.rnd.IntN(2) == 0
	s := f.shape()
	if flow.tcp && flow.step < 3 { // the handshake: no frame is lost in it
		outward = (flow.step == 1) == flow.published
		s = shape{ttl: 64, flags: []string{"S", "SA", "A"}[flow.step], id: s.id}
		flow.step++
	}
	if f.rnd.IntN(40) == 0 {
		flow.tos = []uint8{0, 0, 0x10, 0xb8}[f.rnd.IntN(4)]
	}
	frame := flow.frame(outward, s, f.rnd)
	end := 1
	if outward {
		end = 0
	}
	for i := range f.twins {
		f.taps[i][end].send(f.t, frame)
	}
	f.reset = flow.reset
	known := f.known
	defer func() {
		if f.reset = false; f.known > known {
			f.flows[which] = f.fresh()
		}
	}()
	f.compare(func() string {
		return fmt.Sprintf("sent %s, outward %v, %+v\n%s", describe(frame), outward, s,
			hex.Dump(frame[:min(64, len(frame))]))
	})
	if flow.tcp && strings.Contains(s.flags, "R") && f.rnd.IntN(2) == 0 {
		flow.reset = true // and goes on
	} else if flow.tcp && strings.Contains(s.flags, "R") {
		f.flows[which] = f.fresh()
	}
}

// shape is plain in four of five cases.
func (f *fuzz) shape() shape {
	f.id++
	s := shape{ttl: 64, id: f.id, size: f.rnd.IntN(300), flags: "A",
		dontFragment: f.rnd.IntN(2) == 0}
	if f.rnd.IntN(4) == 0 {
		s.flags = "AP"
	}
	if f.rnd.IntN(4) == 0 {
		s.size = f.rnd.IntN(1400)
	}
	if f.rnd.IntN(5) > 0 {
		return s
	}
	switch f.rnd.IntN(16) {
	case 0:
		s.ttl = uint8(1 + f.rnd.IntN(3))
	case 1:
		s.options = true
	case 2:
		s.fragment = uint16(1 + f.rnd.IntN(2)*8)
	case 3:
		s.badSum = true
	case 4:
		s.badL4 = true
	case 5:
		s.noL4 = true
	case 6:
		s.otherMAC = true
	case 7:
		s.badLength = true
	case 8:
		s.padding = 1 + f.rnd.IntN(20)
	case 9:
		s.flags = []string{"F", "FA", "R", "RA", "S", "SA", "SF", "U", "", "AE",
			"FPU"}[f.rnd.IntN(11)]
	case 10:
		s.seqOff = f.rnd.Uint32()
	case 11:
		s.ackOff = f.rnd.Uint32()
	case 12:
		s.size = 1400 + f.rnd.IntN(40)
	case 13:
		s.size = 0
	case 14:
		s.seqOff, s.flags = f.rnd.Uint32(), "R"
	case 15:
		s.flags = "FA"
	}
	return s
}

// compare waits until both twins have let the same through.
func (f *fuzz) compare(sent func() string) {
	defer func() { f.prohibited = f.prohibits() }()
	const patience = 2 * time.Second // for a machine with much to do
	for until := time.Now().Add(patience); ; {
		late := time.Now().After(until) // this test may have stood still: it looks once more
		f.collect()
		if len(f.pending[0]) == 0 && len(f.pending[1]) == 0 {
			return
		}
		if late {
			break
		}
		time.Sleep(50 * time.Microsecond)
	}
	if f.reset && f.behindReset() {
		f.pending = [2]map[string]int{{}, {}}
		f.known++
		return
	}
	if (f.prohibited || f.prohibits()) && f.errorsAlone() {
		f.pending = [2]map[string]int{{}, {}}
		f.limited++
		return
	}
	what := sent()
	for end, place := range []string{"the container", "the server"} {
		for frame, n := range f.pending[end] {
			by := "only with SCON"
			if n < 0 {
				by = "only without SCON"
			}
			what += fmt.Sprintf("\n%s heard %s: %s", place, by, describe([]byte(frame)))
		}
	}
	f.pending = [2]map[string]int{{}, {}}
	f.differs(what)
}

// collect counts what has come: pending has what one twin has let through more often.
func (f *fuzz) collect() {
	for i := range f.twins {
		for end := range f.taps[i] {
			for _, frame := range f.taps[i][end].heard(f.t) {
				if !whole(frame) || overdue(frame) {
					continue // conntrack gives a broken one up, and its receiver does, too
				}
				key, by := string(f.masked(frame)), 1-2*i
				if f.pending[end][key] += by; f.pending[end][key] == 0 {
					delete(f.pending[end], key)
				}
			}
		}
	}
}

// overdue reports whether a host says that a fragment has waited in vain: of half a minute, the
// changes of a moment may fall in between.
func overdue(frame []byte) bool {
	const protocol, kind, icmp, timeExceeded, inReassembly = 14 + 9, 14 + 20, 1, 11, 1
	return len(frame) > kind+1 && frame[protocol] == icmp && frame[kind] == timeExceeded &&
		frame[kind+1] == inReassembly
}

// masked leaves out what a host chooses itself: the identification of its own packets, and the port
// that it gives a connection where the one that it should have is taken, which may be another's.
func (f *fuzz) masked(frame []byte) []byte {
	const ip, id, protocol, sum, icmp, tcp, udp = 14, 14 + 4, 14 + 9, 14 + 10, 1, 6, 17
	clear := func(from, size int) {
		if from+size <= len(frame) {
			copy(frame[from:from+size], make([]byte, size))
		}
	}
	transport := ip + int(frame[ip]&15)*4
	switch frame[protocol] {
	case icmp:
		clear(id, 2)
		clear(sum, 2)
	case tcp, udp:
		if len(frame) < transport+8 || binary.BigEndian.Uint16(frame[ip+6:])&0x1fff != 0 {
			return frame
		}
		for side := range 2 {
			port := binary.BigEndian.Uint16(frame[transport+2*side:])
			if slices.Contains([]uint16{f.sent, servicePort, publicPort, 80, 7777}, port) {
				continue
			}
			clear(transport+2*side, 2)
			if frame[protocol] == tcp {
				clear(transport+16, 2)
			} else {
				clear(transport+6, 2)
			}
		}
	}
	return frame
}

const firstPort = 20000

func describe(frame []byte) string {
	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	text := ""
	for _, layer := range packet.Layers() {
		switch l := layer.(type) {
		case *layers.IPv4:
			text += fmt.Sprintf("%s>%s ttl %d tos %#x id %d length %d frag %v+%d ", l.SrcIP,
				l.DstIP, l.TTL, l.TOS, l.Id, l.Length, l.Flags, l.FragOffset)
		case *layers.TCP:
			text += fmt.Sprintf("tcp %d>%d S%v A%v F%v R%v P%v U%v E%v seq %d ack %d ",
				l.SrcPort, l.DstPort, l.SYN, l.ACK, l.FIN, l.RST, l.PSH, l.URG, l.ECE, l.Seq,
				l.Ack)
		case *layers.UDP:
			text += fmt.Sprintf("udp %d>%d length %d ", l.SrcPort, l.DstPort, l.Length)
		case *layers.ICMPv4:
			text += fmt.Sprintf("icmp %s ", l.TypeCode)
		}
	}
	return text
}

// change changes something at both hosts, or undoes a change.
func (f *fuzz) change() {
	f.changes++
	port := f.flows[f.rnd.IntN(len(f.flows))].port
	all := []struct{ name, do, undo string }{
		{"drop out", "iptables -I FORWARD -i br0 -p udp --sport %d -j DROP", "iptables -D FORWARD -i br0 -p udp --sport %d -j DROP"},
		{"drop in", "iptables -I FORWARD -o br0 -p tcp --dport %d -j DROP", "iptables -D FORWARD -o br0 -p tcp --dport %d -j DROP"},
		{"drop all", "iptables -I FORWARD -i br0 -j DROP", "iptables -D FORWARD -i br0 -j DROP"},
		{"tos", "iptables -t mangle -A POSTROUTING -p udp -j TOS --set-tos 0x08/0xff", "iptables -t mangle -D POSTROUTING -p udp -j TOS --set-tos 0x08/0xff"},
		{"mark", "iptables -t mangle -A PREROUTING -p tcp -j MARK --set-mark 5", "iptables -t mangle -D PREROUTING -p tcp -j MARK --set-mark 5"},
		{"length", "iptables -I FORWARD -m length --length 200:300 -j DROP", "iptables -D FORWARD -m length --length 200:300 -j DROP"},
		{"limit", "iptables -I FORWARD -p udp -m ttl --ttl-lt 3 -j DROP", "iptables -D FORWARD -p udp -m ttl --ttl-lt 3 -j DROP"},
		{"nat", "iptables -t nat -I POSTROUTING -p tcp --sport %d -j SNAT --to 198.18.0.2:7777", "iptables -t nat -D POSTROUTING -p tcp --sport %d -j SNAT --to 198.18.0.2:7777"},
		{"prohibit", "ip route add prohibit 198.18.0.1", "ip route del prohibit 198.18.0.1"},
		{"mtu", "ip link set nic mtu 1000", "ip link set nic mtu 1500"},
		{"bridge mtu", "ip link set br0 mtu 700", "ip link set br0 mtu 1500"},
		{"flush", "conntrack -F", ""},
		{"delete", "conntrack -D -p udp || true", ""},
		{"delete tcp", "conntrack -D -p tcp || true", ""},
		{"raw", "iptables -t raw -A PREROUTING -p udp -i br0 -j NOTRACK", "iptables -t raw -D PREROUTING -p udp -i br0 -j NOTRACK"},
		{"agent", killAgent, startAgent},
		{"container", "ip link add p9 type veth peer name c9; ip link set p9 master br0 up", "ip link del p9"},
		// A port's state has no generation: it is seen within the second. And the kernel has a
		// bridge drop what leaves by it until it has seen to its carrier.
		{"port", "ip link set p0 nomaster; sleep 1.1", "ip link set p0 master br0; " +
			"timeout 10 sh -c \"until ip link show br0 | grep -q 'state UP'; do sleep 0.01; done\""},
		{"forwarding", "sysctl -qw net.ipv4.conf.br0.forwarding=0", "sysctl -qw net.ipv4.conf.br0.forwarding=1"},
	}
	c := all[f.rnd.IntN(len(all))]
	script, undo := c.do, c.undo
	if former, is := f.undo[c.name]; is {
		script = former
		delete(f.undo, c.name)
	} else if undo != "" {
		f.undo[c.name] = filled(undo, port)
	}
	if c.name == "nat" {
		f.natted[port] = true
	}
	f.apply(filled(script, port))
	f.compare(func() string { return "changed: " + script })
	// What is in force for long hides the rest.
	if len(f.undo) > 2 || f.rnd.IntN(2) == 0 {
		for range 10 {
			f.one()
		}
		for name, undo := range f.undo {
			f.apply(undo)
			delete(f.undo, name)
		}
	}
}

func filled(script string, port uint16) string {
	for i := range script {
		if i+1 < len(script) && script[i] == '%' {
			return fmt.Sprintf(script, port)
		}
	}
	return script
}
