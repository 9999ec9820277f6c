package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	nl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// A tally counts what happened to the traffic of switches.
type tally struct{ switches, sent, lost, doubled, refused, backward, held, dropped int }

// check wants that nothing went wrong. A datagram that was on its way to the gate when the routes
// changed may come after one that was sent later.
func (a *tally) check(t *testing.T) {
	t.Helper()
	t.Logf("%d switches, %d messages: %d lost, %d doubled, %d refused, %d came after a later one; "+
		"%d packets held, %d dropped", a.switches, a.sent, a.lost, a.doubled, a.refused, a.backward,
		a.held, a.dropped)
	if a.lost+a.doubled+a.refused+a.dropped > 0 {
		t.Error("the gate loses, doubles or refuses")
	}
}

// switchOnce lives a gate's life once, with traffic in flight, and adds up what happened to that.
func (w *world) switchOnce(nic *wire.NIC, name string, sum *tally) {
	w.t.Helper()
	g := w.openGate(nic)
	listening := w.listenEarly(nic)
	failures := make(chan error)
	ways := w.ways(nic, name)
	for way, do := range ways {
		go func() {
			err := do()
			if err != nil {
				err = fmt.Errorf("%s: %w", way, err)
			}
			failures <- err
		}()
	}
	w.must(w.held(len(ways) + 19)) // at least one packet each, and 20 of udp
	flow := w.startFlow(nic.Gateway, name+"-flow")
	told, err := w.bringUp(g, nic)
	w.must(err)
	for range ways {
		if err := <-failures; err != nil {
			w.t.Errorf("%s: %v", name, err)
			if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENETUNREACH) ||
				errors.Is(err, unix.EHOSTUNREACH) {
				sum.refused++
			}
		}
	}
	flowed := flow()
	w.reach(nic, listening)
	<-g.gone
	w.must(w.unplug())
	sum.switches++
	sum.held += told.Held
	sum.dropped += told.Dropped
	w.settle(name, ways, flowed, sum)
	if w.t.Failed() {
		w.t.Logf("%s: %+v, %d datagrams flowed", name, told, flowed)
	}
}

// settle counts what came of the named switch.
func (w *world) settle(name string, ways map[string]func() error, flowed int, sum *tally) {
	want := []string{name + "-tcp", "TypeA " + name + "-dns.example.", name + "-static",
		name + "-inherits\n", name + large + " 0"}
	if ways["io_uring"] != nil {
		want = append(want, name+"-uring")
	}
	if ways["raw"] != nil {
		want = append(want, name+"-raw", name+"-routed")
	}
	for i := range 20 {
		want = append(want, fmt.Sprint(name, "-udp ", i))
	}
	for i := range flowed {
		want = append(want, fmt.Sprint(name, "-flow ", i))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, what := range want {
		sum.sent++
		switch n := w.seen[what]; {
		case n == 0:
			sum.lost++
			w.t.Errorf("%.40s did not arrive", what)
		case n > 2 || n > 1 && !strings.HasPrefix(what, "TypeA "): // a resolver may ask again
			sum.doubled++
			w.t.Errorf("%.40s arrived %d times", what, n)
		}
	}
	sum.backward += w.backward
	clear(w.seen)
	clear(w.last)
	w.backward = 0
}

// mostFlow is less than a gate keeps, however long the kernel takes for the VF.
const mostFlow = 900

// startFlow sends datagrams, one each millisecond, until the returned function is called and there
// were 100 at least, or the most. The function returns how many, when the last has arrived.
func (w *world) startFlow(to netip.Addr, stream string) (end func() int) {
	conn, err := w.dial("udp", netip.AddrPortFrom(to, datagramsPort).String())
	w.must(err)
	stop, sent := make(chan struct{}), make(chan int)
	go func() {
		every := time.NewTicker(time.Millisecond)
		defer every.Stop()
		for i := 0; ; i++ {
			if i == mostFlow {
				<-stop
			}
			select {
			case <-stop:
				if i >= 100 {
					sent <- i
					return
				}
				<-every.C
			case <-every.C:
			}
			if _, err := fmt.Fprint(conn, stream, " ", i); err != nil {
				w.t.Errorf("%s %d: %v", stream, i, err)
			}
		}
	}()
	return func() int {
		defer conn.Close()
		close(stop)
		count := <-sent
		last := fmt.Sprint(stream, " ", count-1)
		for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
			w.mu.Lock()
			arrived := w.seen[last] > 0
			w.mu.Unlock()
			if arrived {
				break
			}
			<-time.After(time.Millisecond)
		}
		return count
	}
}

// listenEarly listens in the guest on all addresses, and on its own.
func (w *world) listenEarly(nic *wire.NIC) (listening []net.Listener) {
	w.t.Helper()
	own := netip.AddrPortFrom(nic.Address.Addr(), earlyPort+1)
	for _, at := range []string{fmt.Sprint(":", earlyPort), own.String()} {
		w.must(w.in(w.guest, func() error {
			l, err := net.Listen("tcp", at)
			if err == nil {
				listening = append(listening, l)
			}
			return err
		}))
	}
	return listening
}

// reach connects to the guest's listeners from the network.
func (w *world) reach(nic *wire.NIC, listening []net.Listener) {
	w.t.Helper()
	for i, l := range listening {
		go func() {
			if conn, err := l.Accept(); err == nil {
				fmt.Fprintln(conn, "from the guest")
				conn.Close()
			}
		}()
		var answer string
		err := w.in(w.peer, func() error {
			to := netip.AddrPortFrom(nic.Address.Addr(), uint16(earlyPort+i))
			conn, err := net.DialTimeout("tcp", to.String(), 20*time.Second)
			if err != nil {
				return err
			}
			defer conn.Close()
			answer, err = bufio.NewReader(conn).ReadString('\n')
			return err
		})
		if err != nil || answer != "from the guest\n" {
			w.t.Errorf("the listener on %v answers %q, %v", l.Addr(), answer, err)
		}
		l.Close()
	}
}

// TestTheGateSwitches has every way to the network held at the gate and go on through the VF.
func TestTheGateSwitches(t *testing.T) {
	for name, nic := range gateNICs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.talker = buildTalker(t)
			var sum tally
			for i := range 3 {
				w.switchOnce(nic, fmt.Sprint(name, i), &sum)
			}
			sum.check(t)
		})
	}
}

// Nothing of the gate is left: the network is as if there had been none.
func TestTheGateLeavesNothing(t *testing.T) {
	for name, nic := range gateNICs {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.must(w.plug())
			w.must(w.in(w.guest, func() error {
				rec := &recorder{host: newHost(boottime())}
				_, err := bringUp(nic, &drivers{}, rec, 20*time.Second)
				return err
			}))
			without := w.settled(nic)
			w.must(w.unplug())
			files := openFiles(t)

			g := w.openGate(nic)
			_, err := w.bringUp(g, nic)
			w.must(err)
			<-g.gone
			if with := w.settled(nic); !slices.Equal(with, without) {
				t.Errorf("with a gate:\n%s\nwithout:\n%s", strings.Join(with, "\n"),
					strings.Join(without, "\n"))
			}
			for late := time.Now().Add(10 * time.Second); openFiles(t) > files; {
				if time.Now().After(late) {
					t.Fatalf("%d files are open, %d were before", openFiles(t), files)
				}
				runtime.Gosched()
			}
		})
	}
}

// settled returns the state in which the address is local, which the kernel brings about later.
func (w *world) settled(nic *wire.NIC) (lines []string) {
	local := fmt.Sprintf("Dst: %v ", netip.PrefixFrom(nic.Address.Addr(),
		nic.Address.Addr().BitLen()))
	for late := time.Now().Add(time.Minute); time.Now().Before(late); {
		lines = w.state()
		if slices.ContainsFunc(lines, func(l string) bool {
			return strings.Contains(l, local) && strings.Contains(l, "Table: 255 ")
		}) {
			return lines
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.t.Fatalf("%v never is local", nic.Address.Addr())
	return nil
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// What was on its way to the gate when the routes changed waits for the kernel, where that has no
// room for it at once.
func TestTheGateLosesNothingAtLast(t *testing.T) {
	t.Parallel()
	w, nic := newWorld(t), gateNICs["IPv4"]
	g := w.openGate(nic)
	conn, err := w.dial("udp", netip.AddrPortFrom(nic.Gateway, datagramsPort).String())
	w.must(err)
	defer conn.Close()
	w.must(w.plug())
	w.must(w.in(w.guest, func() error {
		link, err := bringUp(nic, &drivers{}, &recorder{host: newHost(boottime())}, time.Minute)
		if err != nil {
			return err
		}
		g.stop()
		out, err := openRaw(g.source, link)
		if err != nil {
			return err
		}
		nobody := []byte{0: 0x45, 3: header4, 8: 64, 16: 198, 18, 0, 77} // takes up the room
		for err == nil {
			err = out.send(nobody)
		}
		if err != unix.EAGAIN {
			return err
		}
		fmt.Fprint(conn, "late 0") // the gate's routes are still there
		go g.linger(out)
		return nil
	}))
	<-g.gone
	for late := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		w.mu.Lock()
		n := w.seen["late 0"]
		w.mu.Unlock()
		if n == 1 {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("it arrived %d times", n)
		}
	}
}

// A VF that does not come up: whoever waits hears that no host can be reached, and the guest ends.
func TestTheGateRefuses(t *testing.T) {
	for name, nic := range gateNICs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			g := w.openGate(nic)
			failed := make(chan error)
			go func() {
				_, err := w.dial("tcp", netip.AddrPortFrom(nic.Gateway, linesPort).String())
				failed <- err
			}()
			w.must(w.held(1))
			h := newHost(boottime())
			g.until(func() (uint32, error) { return 0, errors.New("no carrier") }, h)
			if err := <-failed; !errors.Is(err, unix.EHOSTUNREACH) {
				t.Errorf("the connection fails with %v", err)
			}
			if err := <-h.down; err == nil || err.Error() != "no carrier" {
				t.Errorf("the guest ends with %v", err)
			}
			for _, line := range w.state() {
				if strings.Contains(line, gateName) {
					t.Errorf("left: %s", line)
				}
			}
		})
	}
}

// Where no gate can be made, the program waits for its VF. The agent hears that it is up.
func TestWithoutAGateTheVFIsWaitedFor(t *testing.T) {
	w, nic := newWorld(t), gateNICs["IPv4"]
	h := newHost(boottime())
	w.must(w.plug())
	w.must(w.in(w.guest, func() error {
		taken := &nl.Veth{LinkAttrs: nl.LinkAttrs{Name: gateName}, PeerName: "other"}
		if err := nl.LinkAdd(taken); err != nil {
			return err
		}
		_, _, err := network(h, &recorder{host: h}, &wire.Config{NIC: nic, Gate: true}, &drivers{})
		return err
	}))
	w.must(w.byTCP(nic.Address.Addr(), nic.Gateway, "up"))
	if last := h.early[len(h.early)-1]; last.Gate == nil || last.Gate.Held > 0 || h.isShut {
		t.Errorf("the agent hears %+v at last, shut %t", last, h.isShut)
	}
}

// What finds no room is dropped and counted.
func TestTheGateIsBounded(t *testing.T) {
	nic := gateNICs["IPv4"]
	for _, c := range []struct{ size, sent, held int }{
		{1, keptPackets + 100, keptPackets}, {1400, 800, keptBytes / 1428},
	} {
		t.Run(fmt.Sprint(c.size), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			g := w.openGate(nic)
			conn, err := w.dial("udp", netip.AddrPortFrom(nic.Gateway, datagramsPort).String())
			w.must(err)
			defer conn.Close()
			for i := range c.sent { // not more at once than the device queues
				conn.Write(make([]byte, c.size))
				if i%100 == 99 {
					w.must(w.held(i + 1))
				}
			}
			w.must(w.held(c.sent))
			told, err := w.bringUp(g, nic)
			w.must(err)
			<-g.gone
			if told.Held != c.held || told.Dropped != c.sent-c.held {
				t.Errorf("%+v, want %d held and %d dropped", told, c.held, c.sent-c.held)
			}
			if told.First == 0 || told.Open < told.First {
				t.Errorf("held from %d to %d", told.First, told.Open)
			}
		})
	}
}

// The gate of a program that never stops sending is gone in the end, and keeps no more than it may.
func TestTheGateStandsAFlood(t *testing.T) {
	for name, nic := range gateNICs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			g := w.openGate(nic)
			const before = 50_000 // datagrams, 70 MB
			conn, err := w.dial("udp", netip.AddrPortFrom(nic.Gateway, datagramsPort).String())
			w.must(err)
			conn.SetDeadline(time.Time{})
			flooded, stop, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				for i := 0; ; i++ {
					conn.Write(make([]byte, 1400))
					if i == before {
						close(flooded)
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			}()
			<-flooded
			told, err := w.bringUp(g, nic)
			w.must(err)
			if told.Held > keptPackets {
				t.Errorf("%+v", told)
			}
			<-g.gone
			close(stop)
			<-ended
			conn.Close()
			w.must(w.byTCP(nic.Address.Addr(), nic.Gateway, "after the flood"))
		})
	}
}

// A program may delete the gate, or parts of it. That costs it what it has sent, and no more.
func TestAProgramDeletesTheGate(t *testing.T) {
	for name, nic := range gateNICs {
		for what, remove := range map[string]func(link nl.Link) error{
			"device": nl.LinkDel,
			"routes": func(link nl.Link) (err error) {
				for _, to := range reaches(nic) {
					err = errors.Join(err, nl.RouteDel(&nl.Route{LinkIndex: link.Attrs().Index,
						Table: unix.RT_TABLE_LOCAL, Scope: nl.SCOPE_LINK,
						Dst: &net.IPNet{IP: to.Addr().AsSlice(),
							Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}}))
				}
				return err
			},
			"link": nl.LinkSetDown,
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				g := w.openGate(nic)
				w.must(w.in(w.guest, func() error {
					link, err := nl.LinkByName(gateName)
					if err != nil {
						return err
					}
					return remove(link)
				}))
				_, err := w.bringUp(g, nic)
				w.must(err)
				w.must(w.byTCP(nic.Address.Addr(), nic.Gateway, "without the gate"))
				<-g.gone
				w.must(w.byTCP(nic.Address.Addr(), nic.Gateway, "as ever"))
			})
		}
	}
}

// In a network of two the gate leads to the other address alone.
func TestTheGateOfAPair(t *testing.T) {
	for name, nic := range map[string]*wire.NIC{
		"IPv4": {MAC: vethMAC, Address: netip.MustParsePrefix("198.18.0.2/31"),
			Gateway: netip.MustParseAddr("198.18.0.3"), DNS: netip.MustParseAddr("198.18.0.3")},
		"IPv6": {MAC: vethMAC, Address: netip.MustParsePrefix("fd00::2/127"),
			Gateway: netip.MustParseAddr("fd00::3"), DNS: netip.MustParseAddr("fd00::3")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			g := w.openGate(nic)
			early := make(chan error)
			go func() { early <- w.byTCP(nic.Address.Addr(), nic.Gateway, "early") }()
			w.must(w.held(1))
			own := w.listenEarly(nic)
			for _, l := range own { // it reaches itself meanwhile
				conn, err := w.dial("tcp", netip.AddrPortFrom(nic.Address.Addr(),
					l.Addr().(*net.TCPAddr).AddrPort().Port()).String())
				w.must(err)
				conn.Close()
				l.Close()
			}
			_, err := w.bringUp(g, nic)
			w.must(err)
			w.must(<-early)
			<-g.gone
			w.must(w.byTCP(nic.Address.Addr(), nic.Gateway, "late"))
		})
	}
}

func TestHalves(t *testing.T) {
	for prefix, want := range map[string]string{
		"0.0.0.0/0": "[0.0.0.0/1 128.0.0.0/1]", "::/0": "[::/1 8000::/1]",
		"198.18.0.2/24": "[198.18.0.0/25 198.18.0.128/25]", "198.18.0.2/32": "[]",
		"198.18.0.2/31": "[198.18.0.2/32 198.18.0.3/32]",
		"fd00::2/64":    "[fd00::/65 fd00::8000:0:0:0/65]",
	} {
		if got := fmt.Sprint(halves(netip.MustParsePrefix(prefix))); got != want {
			t.Errorf("halves of %s: %s, want %s", prefix, got, want)
		}
	}
}
