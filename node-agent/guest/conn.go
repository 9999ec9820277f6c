package guest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/tail"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

const (
	pings       = 8               // exchanges that map the guest's clock
	maxEvents   = 128             // kept of one guest
	sendWithin  = 5 * time.Second // a guest that does not take a message in this time is gone
	entropySize = 64
)

// ErrHungUp means that the guest's connection ended and the guest did not say why. It may have
// fallen.
var ErrHungUp = errors.New("the guest hung up")

// A Conn is the conversation with one guest, from before it is started until it is closed. Its
// methods may be called by any number of goroutines.
type Conn struct {
	forget  func()
	node    *bucket // of all guests' lines
	since   time.Time
	logs    *tail.Log
	called  chan struct{} // closed when hello came
	ready   chan struct{}
	opened  chan struct{} // closed when the guest's gate is open
	done    chan struct{}
	reading sync.WaitGroup
	sending sync.Mutex // held while a message is written

	mu       sync.Mutex
	nc       net.Conn // nil until the guest dials
	ended    bool
	err      error
	hello    wire.Hello
	isReady  bool
	idle     time.Duration // before it was ready, while its VF came up
	gate     wire.Gate
	openedAt time.Time // zero: the gate is not open
	pingID   uint64    // of the last ping sent
	pingedAt time.Time
	clock    clock
	events   []heard
	// One channel per Wake, in the order of sending; each is closed when the guest has set its
	// clock.
	waking []chan struct{}
}

type heard struct {
	wire.Event
	at time.Time
}

func newConn(forget func(), node *bucket) *Conn {
	return &Conn{
		forget: forget, node: node, since: time.Now(), logs: tail.New(),
		called: make(chan struct{}), ready: make(chan struct{}), opened: make(chan struct{}),
		done: make(chan struct{}),
	}
}

// Hello waits for the guest's call. Its Ready says that a former agent configured this guest, which
// then must not be configured again.
func (c *Conn) Hello(ctx context.Context) (wire.Hello, error) {
	if err := c.await(ctx, c.called, "has not called"); err != nil {
		return wire.Hello{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hello, nil
}

// Configure sends the guest its configuration, with the time and fresh entropy filled in, and
// starts mapping its clock. Call it once, after Hello.
func (c *Conn) Configure(config wire.Config) error {
	config.Entropy = make([]byte, entropySize)
	rand.Read(config.Entropy)
	config.Time = time.Now().UnixNano()
	if err := c.send(wire.Down{Config: &config}); err != nil {
		return fmt.Errorf("the guest does not take its configuration: %w", err)
	}
	return c.ping()
}

// Fits returns why a configuration is more than a guest is handed; nil: it is not.
func Fits(config wire.Config) error {
	config.Entropy, config.Time = make([]byte, entropySize), math.MaxInt64
	err := wire.Write(io.Discard, wire.Down{Config: &config})
	if errors.Is(err, wire.ErrTooLong) {
		return fmt.Errorf("the program's command, variables and files are more than a microVM is"+
			" handed: %w (a byte of a file counts 4/3); give it less, or use containers", err)
	}
	return err
}

// Ready waits until the guest's runtime accepts requests on the guest's vsock port
// wire.RuntimePort, its clock is mapped, and its VF is up or has a gate.
func (c *Conn) Ready(ctx context.Context) error { return c.await(ctx, c.ready, "is not ready") }

// Opened is closed when the guest's VF has come up behind its gate.
func (c *Conn) Opened() <-chan struct{} { return c.opened }

// Logs returns what the runtime writes. It ends when the guest hangs up.
func (c *Conn) Logs() *tail.Log { return c.logs }

// Wake tells a guest that was stopped the time, and returns when its time of day is right.
func (c *Conn) Wake(ctx context.Context) error {
	woken := make(chan struct{})
	c.mu.Lock()
	c.waking = append(c.waking, woken)
	c.mu.Unlock()
	if err := c.send(wire.Down{Wake: &wire.Wake{Time: time.Now().UnixNano()}}); err != nil {
		return fmt.Errorf("the guest is not told the time: %w", err)
	}
	return c.await(ctx, woken, "has not set its clock")
}

// Done is closed when the guest has hung up or broken the protocol, or the Conn was closed. Err
// then says why; nil means closed.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is why the conversation ended.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close hangs up and frees the guest's CID. It may run twice.
func (c *Conn) Close() {
	c.end(nil)
	c.reading.Wait()
	c.forget()
}

func (c *Conn) await(ctx context.Context, what <-chan struct{}, not string) error {
	select {
	case <-what:
		return nil
	default:
	}
	select {
	case <-what:
		return nil
	case <-c.done:
		if err := c.Err(); err != nil {
			return fmt.Errorf("the guest %s: %w", not, err)
		}
		return fmt.Errorf("the guest %s: %w", not, net.ErrClosed)
	case <-ctx.Done():
		return fmt.Errorf("the guest %s after %v: %w", not,
			time.Since(c.since).Round(time.Millisecond), context.Cause(ctx))
	}
}

// attach takes the guest's connection and starts hearing it.
func (c *Conn) attach(nc net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || c.nc != nil {
		return false
	}
	c.nc = nc
	c.reading.Go(func() { c.end(c.hear(nc)) })
	return true
}

func (c *Conn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended, c.err = true, err
	if c.nc != nil {
		c.nc.Close()
	}
	c.logs.End()
	close(c.done)
}

func (c *Conn) send(message wire.Down) error {
	c.mu.Lock()
	nc := c.nc
	c.mu.Unlock()
	if nc == nil {
		return errors.New("the guest has not called yet")
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	nc.SetWriteDeadline(time.Now().Add(sendWithin))
	err := wire.Write(nc, message)
	switch {
	case lost(err):
		err = ErrHungUp
		c.end(err)
	case err != nil && !errors.Is(err, wire.ErrTooLong):
		c.end(fmt.Errorf("the guest takes no messages: %w", err))
	}
	return err
}

// lost returns whether an error means that the other end of the connection is gone.
func lost(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func (c *Conn) ping() error {
	c.mu.Lock()
	if c.pingID == pings {
		c.mu.Unlock()
		return nil
	}
	c.pingID++
	id := c.pingID
	c.pingedAt = time.Now()
	c.mu.Unlock()
	return c.send(wire.Down{Ping: &wire.Ping{ID: id}})
}

// hear takes messages until the guest hangs up, and returns why it did.
func (c *Conn) hear(nc net.Conn) error {
	messages := wire.NewReader(newThrottled(nc, c.done, c.node))
	for {
		var up wire.Up
		err := messages.Next(&up)
		switch now := time.Now(); {
		case lost(err):
			return ErrHungUp
		case err != nil:
			return fmt.Errorf("the guest's call broke off: %w", err)
		case up.Exit != nil && up.Exit.NIC:
			return fmt.Errorf("the guest ended: %w: %s", wire.ErrNIC, printable(up.Exit.Reason))
		case up.Exit != nil:
			return fmt.Errorf("the guest ended: %s", printable(up.Exit.Reason))
		case up.Log != nil:
			err = c.log(now, *up.Log)
		default:
			err = c.note(now, up)
		}
		if err != nil {
			return fmt.Errorf("the guest breaks the protocol: %w", err)
		}
	}
}

// log takes a line of the runtime.
func (c *Conn) log(now time.Time, line wire.Log) error {
	const most = 3 * wire.MaxText // the replacement of a byte that is not UTF-8 has three
	if len(line.Text) > most || line.Stream != "stdout" && line.Stream != "stderr" {
		return fmt.Errorf("a log line of %d bytes on stream %.20q", len(line.Text), line.Stream)
	}
	c.logs.Add(wire.LogLine{Time: now, Stream: line.Stream, Text: line.Text})
	return nil
}

// note takes a message about the guest's start.
func (c *Conn) note(now time.Time, up wire.Up) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.called:
	default:
		return c.greet(up)
	}
	if up.Gate != nil && c.openedAt.IsZero() {
		c.gate, c.openedAt = *up.Gate, now
		close(c.opened)
		if up.Event == nil { // of a former guest
			return nil
		}
	}
	switch {
	case up.Event != nil:
		return c.keep(heard{*up.Event, now})
	case up.Woken != nil && len(c.waking) > 0:
		close(c.waking[0])
		c.waking = c.waking[1:]
		return nil
	case up.Ready != nil && !c.isReady:
		c.isReady = true
		c.idle = max(0, min(time.Duration(up.Ready.Idle), now.Sub(c.since)))
		if c.clock.known {
			close(c.ready)
		}
		return nil
	case up.Pong != nil && up.Pong.ID == c.pingID && !c.pingedAt.IsZero():
		if c.isReady && !c.clock.known {
			close(c.ready)
		}
		c.clock.exchange(c.pingedAt, now, up.Pong.Boot)
		c.pingedAt = time.Time{}
		c.mu.Unlock()
		defer c.mu.Lock()
		c.ping() // that it fails, hear sees by itself
		return nil
	}
	return errors.New("a message that nothing asked for")
}

func (c *Conn) greet(up wire.Up) error {
	if up.Hello == nil {
		return errors.New("the first message is no hello")
	}
	c.hello = *up.Hello
	close(c.called)
	if c.hello.Ready {
		c.isReady = true
		close(c.ready)
	}
	return nil
}

// keep remembers an event; a guest reports its own two stages and no other, and not without end.
func (c *Conn) keep(e heard) error {
	if stage := timeline.Stage(e.Stage); stage != timeline.Agent && stage != timeline.VFDriver {
		return fmt.Errorf("an event of stage %.20q", e.Stage)
	}
	if e.Step = printable(e.Step); len(c.events) < maxEvents {
		c.events = append(c.events, e)
	}
	return nil
}

// printable returns the part of a guest's text that may be shown: one line, no control characters,
// not much.
func printable(text string) string {
	const most = 300
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}
