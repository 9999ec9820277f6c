package guest

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

func TestMain(m *testing.M) { leaks.Main(m) }

const cid = 42

// pipes is a transport whose guests are the other ends of pipes.
type pipes struct {
	calls chan call
	ended chan struct{}
}

type call struct {
	net.Conn
	cid uint32
}

func (p *pipes) Accept() (net.Conn, uint32, error) {
	select {
	case c := <-p.calls:
		return c.Conn, c.cid, nil
	case <-p.ended:
		return nil, 0, net.ErrClosed
	}
}

func (p *pipes) Close() error { close(p.ended); return nil }

// A fakeGuest plays a guest in a test.
type fakeGuest struct {
	t *testing.T
	net.Conn
	heard *wire.Reader
}

func (p *pipes) dial(t *testing.T, cid uint32) *fakeGuest {
	host, guest := net.Pipe()
	t.Cleanup(func() { guest.Close() })
	guest.SetDeadline(time.Now().Add(10 * time.Second))
	p.calls <- call{host, cid}
	return &fakeGuest{t, guest, wire.NewReader(guest)}
}

func (g *fakeGuest) say(up wire.Up) {
	g.t.Helper()
	if err := wire.Write(g, up); err != nil {
		g.t.Fatalf("the host does not hear %+v: %v", up, err)
	}
}

func (g *fakeGuest) hear() (down wire.Down) {
	g.t.Helper()
	if err := g.heard.Next(&down); err != nil {
		g.t.Fatal(err)
	}
	return down
}

// hungUp waits until the host has hung up.
func (g *fakeGuest) hungUp() {
	g.t.Helper()
	if n, err := io.Copy(io.Discard, g); err != nil {
		g.t.Fatalf("not hung up after %d bytes: %v", n, err)
	}
}

func expect(t *testing.T) (*pipes, *Listener, *Conn) {
	t.Helper()
	p := &pipes{make(chan call), make(chan struct{})}
	l := On(p)
	t.Cleanup(func() {
		select {
		case <-p.ended:
		default:
			l.Close()
		}
	})
	c, err := l.Expect(cid)
	if err != nil {
		t.Fatal(err)
	}
	return p, l, c
}

var hello = wire.Up{Hello: &wire.Hello{Boot: 900e6, Real: 5}}

// answerPings answers the host's pings with the guest's clock, and returns when all have been.
func (g *fakeGuest) answerPings(boot func() int64) {
	for range pings {
		ping := g.hear().Ping
		if ping == nil {
			g.t.Fatal("the host says something else than ping")
		}
		g.say(wire.Up{Pong: &wire.Pong{ID: ping.ID, Boot: boot()}})
	}
}

func TestConversation(t *testing.T) {
	p, _, c := expect(t)
	ctx := t.Context()
	bootZero := time.Now().Add(-1500 * time.Millisecond)
	c.since = bootZero.Add(-time.Second)
	boot := func() int64 { return int64(time.Since(bootZero)) }

	played := make(chan struct{})
	go func() {
		defer close(played)
		g := p.dial(t, cid)
		g.say(hello)
		config := g.hear().Config
		if config == nil || config.Hostname != "h" || len(config.Entropy) != 64 ||
			time.Since(time.Unix(0, config.Time)) > time.Minute {
			t.Errorf("configured as %+v", config)
		}
		g.answerPings(boot)
		g.say(wire.Up{Event: &wire.Event{Stage: "agent", Begin: 900e6, End: 1100e6}})
		g.say(wire.Up{Event: &wire.Event{Stage: "agent", Step: "root", Begin: 950e6, End: 960e6}})
		g.say(wire.Up{Event: &wire.Event{Stage: "5-vf-driver", Begin: 1000e6, End: 1200e6}})
		g.say(wire.Up{Ready: &wire.Ready{}})
		g.say(wire.Up{Log: &wire.Log{Stream: "stdout", Text: "hi"}})
		g.say(wire.Up{Exit: &wire.Exit{Reason: "the runtime ended\x1b[2J"}})
		g.hungUp()
	}()

	if h, err := c.Hello(ctx); err != nil || h != *hello.Hello {
		t.Fatal(h, err)
	}
	if err := c.Configure(wire.Config{Hostname: "h",
		Program: wire.Program{Command: []string{"x"}}}); err != nil {
		t.Fatal(err)
	}
	if err := c.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	line, _, err := c.Logs().Read().Next(ctx)
	if err != nil || line.Stream != "stdout" || line.Text != "hi" {
		t.Errorf("logs: %+v, %v", line, err)
	}
	checkSpans(t, c, bootZero)
	<-c.Done()
	if err := c.Err(); err == nil || err.Error() != "the guest ended: the runtime ended [2J" {
		t.Errorf("ended: %q", err)
	}
	<-played
	c.Close()
	c.Close()
}

// A VF that comes up after the guest is ready is known when the guest says so, once.
func TestTheGate(t *testing.T) {
	p, _, c := expect(t)
	bootZero := time.Now().Add(-1500 * time.Millisecond)
	c.since = bootZero.Add(-time.Second)
	ready, played := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(played)
		g := p.dial(t, cid)
		g.say(hello)
		g.hear()
		g.answerPings(func() int64 { return int64(time.Since(bootZero)) })
		g.say(wire.Up{Ready: &wire.Ready{Idle: 50e6}})
		<-ready
		g.say(wire.Up{Event: &wire.Event{Stage: "5-vf-driver", Begin: 1000e6, End: 1200e6}})
		g.say(wire.Up{Gate: &wire.Gate{Held: 3, Dropped: -1, First: 1100e6, Open: 1300e6},
			Event: &wire.Event{Stage: "5-vf-driver", Step: "held", Begin: 1100e6, End: 1300e6}})
		g.say(wire.Up{Gate: &wire.Gate{Held: 9}})
		g.hungUp()
	}()
	if _, err := c.Hello(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Configure(wire.Config{Gate: true}); err != nil {
		t.Fatal(err)
	}
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if g := c.Gate(); g.Open || g.Idle != 50*time.Millisecond || len(c.Spans()) != 1 {
		t.Errorf("before it is open: %+v, %+v", g, c.Spans())
	}
	close(ready)
	<-c.Opened()
	g := c.Gate()
	if !g.Open || g.Held != 3 || g.Dropped != 0 || g.Idle != 50*time.Millisecond ||
		len(c.Spans()) != 2 {
		t.Errorf("open: %+v, %+v", g, c.Spans())
	}
	if held := g.Opened.Sub(g.First); held != 200*time.Millisecond || len(c.Steps()) != 1 {
		t.Errorf("held for %v, %+v", held, c.Steps())
	}
	<-c.Done()
	if err := c.Err(); err == nil || !strings.Contains(err.Error(), "nothing asked for") {
		t.Errorf("a second time: %v", err)
	}
	<-played
	c.Close()
}

func TestAGuestWhoseVFFails(t *testing.T) {
	p, _, c := expect(t)
	go func() {
		g := p.dial(t, cid)
		g.say(hello)
		g.say(wire.Up{Exit: &wire.Exit{Reason: "no carrier", NIC: true}})
	}()
	<-c.Done()
	err := c.Err()
	if !errors.Is(err, wire.ErrNIC) || !strings.Contains(err.Error(), "no carrier") {
		t.Error(err)
	}
	c.Close()
}

func checkSpans(t *testing.T, c *Conn, bootZero time.Time) {
	t.Helper()
	spans := c.Spans()
	if len(spans) != 3 {
		t.Fatalf("spans: %+v", spans)
	}
	for i, want := range []struct {
		stage      timeline.Stage
		begin, end int64
	}{{timeline.GuestBoot, 0, 900e6}, {timeline.Agent, 900e6, 1100e6},
		{timeline.VFDriver, 1000e6, 1200e6}} {
		s := spans[i]
		off := max(s.Begin.Sub(bootZero.Add(time.Duration(want.begin))).Abs(),
			s.End.Sub(bootZero.Add(time.Duration(want.end))).Abs())
		if s.Stage != want.stage || off > s.Error+time.Microsecond {
			t.Errorf("%s is off by %v and says ± %v", s.Stage, off, s.Error)
		}
	}
	if steps := c.Steps(); len(steps) != 1 || steps[0].Name != "root" ||
		steps[0].End.Sub(steps[0].Begin) != 10*time.Millisecond {
		t.Errorf("steps: %+v", steps)
	}
}

func TestReadyGuestIsAdopted(t *testing.T) {
	p, _, c := expect(t)
	go func() {
		g := p.dial(t, cid)
		g.say(wire.Up{Hello: &wire.Hello{Ready: true}})
	}()
	if h, err := c.Hello(t.Context()); err != nil || !h.Ready {
		t.Fatal(h, err)
	}
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Ready means that the stages can be read, also where the guest was quicker than the first
// exchange.
func TestReadyWaitsForTheClock(t *testing.T) {
	p, _, c := expect(t)
	played := make(chan struct{})
	go func() {
		defer close(played)
		g := p.dial(t, cid)
		g.say(hello)
		g.hear() // its configuration
		ping := g.hear().Ping
		g.say(wire.Up{Ready: &wire.Ready{}})
		g.say(wire.Up{Pong: &wire.Pong{ID: ping.ID, Boot: 1}})
		g.hungUp()
	}()
	if _, err := c.Hello(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Configure(wire.Config{}); err != nil {
		t.Fatal(err)
	}
	if err := c.Ready(t.Context()); err != nil || len(c.Spans()) != 1 {
		t.Error(err, c.Spans())
	}
	c.Close()
	<-played
}

// Two that wake one guest are told one after the other, and neither takes the other's answer.
func TestTwoWakes(t *testing.T) {
	p, _, c := expect(t)
	g := p.dial(t, cid)
	g.say(hello)
	if _, err := c.Hello(t.Context()); err != nil {
		t.Fatal(err)
	}
	woken := make(chan error, 2)
	for range 2 {
		go func() { woken <- c.Wake(t.Context()) }()
	}
	for range 2 {
		if g.hear().Wake == nil {
			t.Fatal("the guest is told something else than the time")
		}
	}
	for range 2 {
		g.say(wire.Up{Woken: &wire.Woken{}})
		if err := <-woken; err != nil {
			t.Error(err)
		}
	}
	c.Close()
}

func TestUnexpectedCallsAreHungUp(t *testing.T) {
	p, l, c := expect(t)
	p.dial(t, cid+1).hungUp()
	first := p.dial(t, cid)
	first.say(hello)
	p.dial(t, cid).hungUp()
	if _, err := l.Expect(cid); err == nil {
		t.Error("a CID was given away twice")
	}
	c.Close()
	first.hungUp()
	p.dial(t, cid).hungUp()
	if err := c.Err(); err != nil {
		t.Errorf("a closed conversation ended with %v", err)
	}
	if _, err := l.Expect(cid); err != nil {
		t.Errorf("a CID is not free again: %v", err)
	}
}

// A Conn that is closed twice leaves the guest alone that has its CID by then.
func TestTheSecondCloseFreesNobodyElsesCID(t *testing.T) {
	p, l, first := expect(t)
	first.Close()
	second, err := l.Expect(cid)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	first.Close()
	p.dial(t, cid).say(hello)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := second.Hello(ctx); err != nil {
		t.Error(err)
	}
}

func TestListenerCloseEndsAll(t *testing.T) {
	p, l, c := expect(t)
	g := p.dial(t, cid)
	g.say(hello)
	l.Close()
	g.hungUp()
	<-c.Done()
	if _, err := l.Expect(cid + 1); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed listener expects a guest: %v", err)
	}
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	_, _, c := expect(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the caller went away")
	cancel(why)
	if _, err := c.Hello(ctx); !errors.Is(err, why) {
		t.Errorf("Hello: %v", err)
	}
	if err := c.Ready(ctx); !errors.Is(err, why) {
		t.Errorf("Ready: %v", err)
	}
	if err := c.Configure(wire.Config{}); err == nil {
		t.Error("a guest that has not called was configured")
	}
	if c.Spans() != nil || c.Steps() != nil {
		t.Error("a guest that has not called has spans")
	}
}
