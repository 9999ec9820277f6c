package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

const (
	redialFirst = 50 * time.Millisecond
	redialMost  = time.Second
)

// A host is the conversation with the agent. Before the first connection messages wait in a list.
// On a lost connection they are dropped, except log lines, which wait for the next.
type host struct {
	start   int64 // boot time
	real    int64
	gates   bool // the kernel has what a gate needs
	configs chan *wire.Config
	wake    func(unixNano int64) error
	// The reason why the guest must end: its clock cannot be set, or the host was lost before the
	// guest was ready.
	down chan error

	mu      sync.Mutex
	changed *sync.Cond
	link    *os.File      // nil: not connected
	lost    chan struct{} // closed with the connection
	early   []wire.Up     // before the first connection
	called  bool
	isReady bool
	isShut  bool // the gate, until the VF is up
	ending  bool
	cause   error // why the VF did not come up: the guest will end, whatever ends it
}

func newHost(start int64) *host {
	h := &host{start: start, real: time.Now().UnixNano(), configs: make(chan *wire.Config, 1),
		wake: catchUp, down: make(chan error, 1)}
	h.changed = sync.NewCond(&h.mu)
	return h
}

// call dials the host and keeps the conversation going from then on. A restarted agent hangs up
// until it knows this guest again, so a short call is followed by a pause.
func (h *host) call(dial func() (*os.File, error)) {
	go func() {
		for pause := redialFirst; ; pause = min(2*pause, redialMost) {
			began := time.Now()
			if !h.talk(dial) {
				return
			}
			if time.Since(began) > redialMost {
				pause = redialFirst
			}
			time.Sleep(pause)
		}
	}()
}

// talk is one connection, from dialling until it is lost; it returns whether to dial again.
func (h *host) talk(dial func() (*os.File, error)) bool {
	link, err := h.dial(dial)
	if err != nil {
		h.fail(err)
		return false
	}
	h.mu.Lock()
	hello := wire.Hello{Boot: h.start, Real: h.real, Ready: h.isReady, Ports: true,
		Gate: h.gates, Shut: h.isShut, Files: true, Rooms: true}
	err = wire.Write(link, wire.Up{Hello: &hello})
	for _, up := range h.early {
		err = errors.Join(err, wire.Write(link, up))
	}
	h.early, h.link, h.lost, h.called = nil, link, make(chan struct{}), true
	h.changed.Broadcast()
	h.mu.Unlock()

	if err == nil {
		err = h.listen(link)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.link = nil
	link.Close()
	close(h.lost)
	h.changed.Broadcast()
	if !h.isReady {
		h.fail(fmt.Errorf("the host hung up before the guest was ready: %w", err))
	}
	return h.isReady && !h.ending
}

// dial retries: the process that started this guest listens, so a refusal means that it is being
// restarted.
func (h *host) dial(dial func() (*os.File, error)) (*os.File, error) {
	deadline := time.Now().Add(configWithin)
	for pause := redialFirst; ; pause = min(2*pause, redialMost) {
		link, err := dial()
		if err == nil {
			return link, nil
		}
		h.mu.Lock()
		forever := h.isReady
		h.mu.Unlock()
		if !forever && time.Now().After(deadline) {
			return nil, fmt.Errorf("the host does not answer: %w", err)
		}
		time.Sleep(pause)
	}
}

// listen takes the host's messages until the connection is lost.
func (h *host) listen(link *os.File) error {
	messages := wire.NewReader(link)
	for {
		var down wire.Down
		if err := messages.Next(&down); err != nil {
			return err
		}
		switch {
		case down.Ping != nil:
			h.send(wire.Up{Pong: &wire.Pong{ID: down.Ping.ID, Boot: boottime()}})
		case down.Wake != nil:
			if err := h.wake(down.Wake.Time); err != nil {
				h.fail(err)
				continue
			}
			h.send(wire.Up{Woken: &wire.Woken{}})
		case down.Config != nil:
			select {
			case h.configs <- down.Config:
			default:
			}
		}
	}
}

// config waits for the host's configuration.
func (h *host) config(within time.Duration) (*wire.Config, error) {
	select {
	case c := <-h.configs:
		return c, nil
	case <-time.After(within):
		return nil, fmt.Errorf("the host sent no configuration within %v", within)
	}
}

func (h *host) fail(err error) {
	select {
	case h.down <- err:
	default: // it ends already
	}
}

// because takes the reason why the guest will end; what the program does until then follows from
// it.
func (h *host) because(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cause = err
}

// why returns the reason for an end: what brought it about or, without that, what was seen.
func (h *host) why(seen error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return cmp.Or(h.cause, seen)
}

// shut takes in that the gate is closed. An agent that is called from now on hears it in the hello.
func (h *host) shut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.isShut = true
}

// opened reports that the VF is up. Of the message an agent without gates takes the event: one
// without an event would end the conversation, and the guest.
func (h *host) opened(told wire.Gate) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.isShut = false
	h.report(wire.Up{Gate: &told, Event: &wire.Event{Stage: vfStage, Step: "held",
		Begin: cmp.Or(told.First, told.Open), End: told.Open}})
}

// send reports something that is worth nothing after this connection.
func (h *host) send(up wire.Up) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.report(up)
}

func (h *host) report(up wire.Up) {
	if !h.called {
		h.early = append(h.early, up)
		return
	}
	h.write(up)
}

// log reports a line that the runtime wrote, waiting for a connection. A runtime that writes on
// meanwhile waits too.
func (h *host) log(stream, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for !h.ending && !h.write(wire.Up{Log: &wire.Log{Stream: stream, Text: text}}) {
		h.changed.Wait()
	}
}

// ready reports that the runtime accepts, and for how long only the VF was waited for until then.
func (h *host) ready(idle time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.isReady = true
	h.write(wire.Up{Ready: &wire.Ready{Idle: int64(idle)}})
}

func (h *host) write(up wire.Up) bool {
	if h.link == nil {
		return false
	}
	if err := wire.Write(h.link, up); err != nil {
		h.link.Close() // so listen ends, and with it the connection
		h.link = nil
		return false
	}
	return true
}

// goodbye tells the host why the guest ends and lets it hang up first, so that the words are not
// lost with the machine.
func (h *host) goodbye(reason error) {
	h.mu.Lock()
	h.ending = true
	h.changed.Broadcast()
	heard := h.write(wire.Up{Exit: &wire.Exit{Reason: reason.Error(), NIC: h.cause != nil}})
	lost := h.lost
	h.mu.Unlock()
	if heard {
		<-lost
	}
}
