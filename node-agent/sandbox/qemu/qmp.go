package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// QMP is QEMU's control protocol: JSON objects, one a line. The server greets; the client says
// qmp_capabilities; from then on each command has one return or error, and events come in between.
// A VMM that its guest has taken over may say anything here. So a line has a bound, and only the
// known fields of an event are read. It may also say nothing. A waiting caller is released by
// close, which the end of the sandbox calls, and a start's deadline ends the sandbox.

const maxQMPLine = 256 << 10

// An event is one QMP event.
type event struct {
	Name string
	At   time.Time // by the VMM's reading of the host's clock
	Data struct {
		Reason string `json:"reason"` // SHUTDOWN
		Action string `json:"action"` // GUEST_PANICKED
	}
}

// A message is one line from QEMU, of whichever kind.
type message struct {
	Greeting json.RawMessage `json:"QMP"`
	Return   json.RawMessage `json:"return"`
	Error    *struct {
		Desc string `json:"desc"`
	} `json:"error"`
	Event     string          `json:"event"`
	Data      json.RawMessage `json:"data"`
	Timestamp struct {
		Seconds      int64 `json:"seconds"`
		Microseconds int64 `json:"microseconds"`
	} `json:"timestamp"`
}

// A qmp is one connection. Its reader calls onEvent with each event; onEvent must not wait for a
// command.
type qmp struct {
	conn    net.Conn
	onEvent func(event)
	replies chan message
	asking  sync.Mutex
	quit    context.Context // ends with close
	stop    func()
	done    chan struct{} // closed when the reader has ended
}

// dialQMP connects to the socket at path. The socket is bound before QEMU starts, so QEMU may not
// serve it yet.
func dialQMP(path string, onEvent func(event)) (*qmp, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, fmt.Errorf("QMP: %w", err)
	}
	return newQMP(conn, onEvent), nil
}

func newQMP(conn net.Conn, onEvent func(event)) *qmp {
	q := &qmp{conn: conn, onEvent: onEvent, replies: make(chan message), done: make(chan struct{})}
	q.quit, q.stop = context.WithCancel(context.Background())
	go q.read()
	return q
}

// hello takes the greeting and leaves the negotiation.
func (q *qmp) hello() error {
	if err := q.await(nil, func(m message) bool { return m.Greeting != nil }); err != nil {
		return err
	}
	return q.ask("qmp_capabilities", nil)
}

// ask runs a command and decodes what it returns into answer, unless that is nil.
func (q *qmp) ask(command string, answer any) error {
	q.asking.Lock()
	defer q.asking.Unlock()
	if _, err := fmt.Fprintf(q.conn, "{\"execute\":%q}\n", command); err != nil {
		return fmt.Errorf("QMP %s: %w", command, err)
	}
	if err := q.await(answer, func(m message) bool {
		return m.Return != nil || m.Error != nil
	}); err != nil {
		return fmt.Errorf("QMP %s: %w", command, err)
	}
	return nil
}

func (q *qmp) await(answer any, wanted func(message) bool) error {
	select {
	case m := <-q.replies:
		switch {
		case !wanted(m):
			return errors.New("QEMU speaks out of turn")
		case m.Error != nil:
			return fmt.Errorf("%.300s", strings.Map(printable, m.Error.Desc))
		case answer == nil:
			return nil
		}
		return json.Unmarshal(m.Return, answer)
	case <-q.done:
		return errors.New("QEMU closed the connection")
	}
}

func (q *qmp) read() {
	defer close(q.done)
	defer q.conn.Close()
	for lines := newLines(q.conn); lines.Scan(); {
		m, err := parse(lines.Bytes())
		if err != nil {
			return
		}
		if m.Event != "" {
			q.onEvent(eventOf(m))
			continue
		}
		select {
		case q.replies <- m:
		case <-q.quit.Done():
			return
		}
	}
}

func newLines(r io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxQMPLine)
	return lines
}

func parse(line []byte) (message, error) {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return m, err
	}
	if m.Greeting == nil && m.Return == nil && m.Error == nil && m.Event == "" {
		return m, errors.New("neither greeting, return, error nor event")
	}
	return m, nil
}

func eventOf(m message) event {
	e := event{Name: m.Event, At: time.Unix(m.Timestamp.Seconds, m.Timestamp.Microseconds*1000)}
	_ = json.Unmarshal(m.Data, &e.Data) // unknown fields and shapes are ignored
	return e
}

func (q *qmp) close() {
	q.stop()
	q.conn.Close()
	<-q.done
}
