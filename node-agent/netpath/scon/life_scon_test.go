//go:build scon

package scon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A container that goes takes its entries and the kernel's connections along.
func TestAContainerTakesItsEntriesAlong(t *testing.T) {
	w := wire(t)
	w.established(&flow{port: 20001})
	if n := len(w.entries()); n != 2 {
		t.Fatalf("%d entries", n)
	}
	w.host.run(t, "ip link del p0")
	for until := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
		if err != nil {
			t.Fatal(err)
		}
		flows = slices.DeleteFunc(flows, func(f *netlink.ConntrackFlow) bool {
			return f.Forward.Protocol != unix.IPPROTO_UDP
		})
		if len(w.entries()) == 0 && len(flows) == 0 {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%d entries and %d connections are left", len(w.entries()), len(flows))
		}
	}
}

func (w *wired) entries() (all []programFlow) {
	var f programFlow
	var e programConentry
	for each := w.s.programs.Conentries.Iterate(); each.Next(&f, &e); {
		all = append(all, f)
	}
	return all
}

// One container's connections leave those of another their room.
func TestAContableHasItsOwnRoom(t *testing.T) {
	w := wire(t)
	first := w.established(&flow{port: 20000})
	var flows []*flow
	for n := range uint16(50) {
		f := &flow{port: 20001 + n}
		w.pass(f, true, shape{size: 10})
		w.pass(f, false, shape{size: 10})
		flows = append(flows, f)
	}
	time.Sleep(young)
	func() {
		w.s.mu.Lock() // nobody permits another share meanwhile
		defer w.s.mu.Unlock()
		var p programPermit
		err := w.s.programs.Permits.Lookup(uint32(0), &p)
		p.Share = 10
		err = errors.Join(err, w.s.programs.Permits.Put(uint32(0), p))
		for _, f := range flows {
			w.pass(f, true, shape{size: 10})
			w.pass(f, false, shape{size: 10})
		}
		if n := len(w.entries()); n != 10 || err != nil {
			t.Errorf("%d entries, want 10; %v", n, err)
		}
	}()
	w.wantExpress(first, true)
}

// Idle entries go, and all are walked only where one may be idle.
func TestIdleEntriesAreFlushed(t *testing.T) {
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		t.Skipf("the kernel counts no runs of programs: %v", err)
	}
	defer stats.Close()
	w := wire(t)
	w.established(&flow{port: 20001})
	until := time.Now().Add(idle + 5*time.Second)
	for len(w.entries()) > 0 && time.Now().Before(until) {
		time.Sleep(flushEvery / 10)
	}
	about, err := w.s.programs.Flush.Stats()
	if err != nil || len(w.entries()) > 0 || about.RunCount > 5 {
		t.Errorf("%d entries are left after %d walks: %v", len(w.entries()), about.RunCount, err)
	}
}

// look returns how many allocations the look of each second takes.
func look() uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	time.Sleep(flushEvery)
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs
}

// Devices are read when one is announced.
func TestDevicesAreReadOnce(t *testing.T) {
	w := wire(t)
	few := max(look(), look(), look())
	w.host.run(t, `seq 200 | sed 's/.*/link add more& group 7 type veth/' | ip -batch -`)
	t.Cleanup(func() { w.host.run(t, "ip link del group 7") })
	if many := min(look(), look(), look()); many > few+500 {
		t.Errorf("a look at the devices takes %d allocations, and %d with 200 more", few, many)
	}
}

// Rules are read once for their generation.
func TestRulesAreReadOnce(t *testing.T) {
	w := wire(t)
	w.host.run(t, "nft add table ip more; nft add chain ip more rules")
	w.permitted()
	few := max(look(), look(), look())
	var rules strings.Builder
	for n := range 500 {
		fmt.Fprintf(&rules, "add rule ip more rules ip saddr 203.0.113.%d drop\n", n%256)
	}
	w.host.run(t, "nft -f - <<END\n"+rules.String()+"END")
	w.permitted()
	if many := min(look(), look(), look()); many > few+500 {
		t.Errorf("a look at the rules takes %d allocations, and %d with 500 more", few, many)
	}
}

// Who puts conntrack's settings back takes TCP from the express path, and that is told.
func TestSettingsThatArePutBackAreTold(t *testing.T) {
	build(t, place{})
	told := make(chan string, 16)
	s := attach(t, func(c *Config) {
		c.Settings = true
		lines := writer(func(line []byte) { told <- string(line) })
		c.Log = slog.New(slog.NewTextHandler(lines, nil))
	})
	if err := os.WriteFile(Settings[0], []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	for until := time.After(10 * time.Second); ; {
		select {
		case line := <-told:
			if strings.Contains(line, "TCP stays on the regular path") {
				return
			}
		case <-until:
			t.Fatalf("nothing is said of %s: %v", Settings[0], s.Refused())
		}
	}
}

type writer func(line []byte)

func (w writer) Write(line []byte) (int, error) {
	w(line)
	return len(line), nil
}

// Without its agent the path goes on as long as the rules are those that were read; the next agent
// takes over.
func TestWithoutAnAgent(t *testing.T) {
	w := wire(t)
	f := w.established(&flow{port: 20001})
	former := w.s
	former.Close()
	view, err := Open(former.Records, former.Bridge)
	if err != nil {
		t.Fatal(err)
	}
	counts := func() uint64 {
		all, err := view.Counts()
		if err != nil {
			t.Fatal(err)
		}
		return all["express"]
	}
	send := func() bool {
		before := counts()
		w.container.send(t, f.frame(true, shape{ttl: 64, size: 10}, w.rnd))
		if len(w.server.await(t, surely)) != 1 {
			t.Fatal("a packet was lost")
		}
		return counts() > before
	}
	send() // it may be the second's sample
	if !w.oneOfFive(send) {
		t.Error("packets are regular without an agent")
	}
	for _, change := range []string{"-I FORWARD -m length --length 500: -j DROP", "-D FORWARD 1"} {
		w.host.run(t, "iptables "+change)
		for range 2 {
			if send() {
				t.Error("a packet went express by rules that nobody has read")
			}
		}
	}
	next, err := Attach(former.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	w.s = next
	w.wantExpress(f, true)
	if _, err := Attach(former.Config); err == nil || !strings.Contains(err.Error(), "follows") {
		t.Errorf("a second agent: %v", err)
	}
}

// The settings of conntrack are put back, also those of an attachment whose agent is gone.
func TestDetachPutsSettingsBack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	w := build(t, place{})
	read := func() (values string) {
		for _, file := range Settings {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			values += strings.TrimSpace(string(text))
		}
		return values
	}
	w.host.run(t, "sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=0")
	cfg := config(t)
	cfg.Settings = true
	for range 2 { // the second finds what the first has set
		s, err := Attach(cfg)
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		if is := read(); is != "11" {
			t.Errorf("settings %s", is)
		}
	}
	w.host.run(t, "ip link add br9 type bridge")
	second := cfg
	second.Bridge = "br9"
	s, err := Attach(second)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	for _, step := range []struct{ bridge, want string }{{cfg.Bridge, "11"}, {"br9", "01"}} {
		if err := Detach(cfg.Records, step.bridge); err != nil {
			t.Error(err)
		}
		if is := read(); is != step.want {
			t.Errorf("settings %s after Detach of %s, want %s", is, step.bridge, step.want)
		}
	}
}

// A flow that the operator has turned off is regular until it is turned on again.
func TestAFlowIsTurnedOff(t *testing.T) {
	w := wire(t)
	f := w.established(&flow{port: 20001})
	view, err := Open(w.s.Records, w.s.Bridge)
	if err != nil {
		t.Fatal(err)
	}
	for _, ends := range [][2]string{{"10.9.0.2:20001", "198.18.0.1:7"},
		{"198.18.0.1:7", "198.18.0.2:20001"}} {
		named, err := ParseFlow("udp", ends[0], ends[1])
		if err != nil {
			t.Fatal(err)
		}
		if err := view.TurnOff(named, true); err != nil {
			t.Fatal(err)
		}
	}
	w.wantExpress(f, false)
	entries, err := view.Entries()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Next == "express" {
			t.Errorf("%s will go express", e.Flow)
		}
		if err := view.TurnOff(e.Flow, false); err != nil {
			t.Error(err)
		}
	}
	if len(entries) != 2 {
		t.Errorf("entries %v", entries)
	}
	w.wantExpress(f, true)
	if established, fresh, err := view.Permitted(); !established || !fresh || err != nil {
		t.Errorf("permitted %v, %v: %v", established, fresh, err)
	}
}

// Taking the programs off, and other ones of them in their place, resets no connection, whatever of
// it went express: conntrack goes on to tolerate that.
func TestDetachUnderLoadResetsNothing(t *testing.T) {
	w := build(t, place{})
	w.host.run(t, "sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=0")
	cfg := config(t)
	cfg.Settings = true
	w.server.echo(t, "198.18.0.1:7")
	conn := w.container.dial(t, "tcp4", "198.18.0.1:7")
	for range 2 { // the second takes over from the first
		s, err := Attach(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ask(t, conn, 300, 1<<20)
		if counts := s.Counts(); counts["express"] < 1000 {
			t.Errorf("too few packets went express: %v", counts)
		}
		s.Close()
	}
	if err := Detach(cfg.Records, cfg.Bridge); err != nil {
		t.Fatal(err)
	}
	ask(t, conn, 100, 1<<20)
}
