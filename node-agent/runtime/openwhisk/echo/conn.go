package echo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk/http1"
)

const (
	mostSaid   = 80 << 20 // bytes of a request
	mostUnread = 1 << 20  // bytes of answers; who sends more requests waits until they are read
	mostKept   = 64 << 10 // bytes of a buffer that is used again
)

// errEnded is the error of a connection whose sandbox has ended.
var errEnded = errors.New("the simulated sandbox has ended")

// A conn is a connection to a runtime in this process, which takes HTTP requests. What is written
// is answered at once, by the goroutine that writes: a call costs no switch to another one.
type conn struct {
	life context.Context // the sandbox's
	left func() bool     // stops waiting for the end of life
	ran  func(status, length int)
	text bytes.Reader
	in   *bufio.Reader // reads text
	head http1.Head

	mu       sync.Mutex
	changed  sync.Cond
	said     bytes.Buffer // what is not answered yet
	answers  bytes.Buffer
	late     *time.Timer // sends the answer that is on its way; nil: none is
	over     bool        // no more requests come
	closed   bool
	deadline time.Time
}

// Dial connects to a runtime that lives as long as life. Before a /run is answered, ran is told the
// status, and how many bytes the request had.
func Dial(life context.Context, ran func(status, length int)) net.Conn {
	c := &conn{life: life, ran: ran, in: bufio.NewReader(nil)}
	c.changed.L = &c.mu
	c.left = context.AfterFunc(life, c.wake)
	return c
}

func (c *conn) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed.Broadcast()
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch err := c.broken(); {
		case err != nil:
			return 0, err
		case c.over || c.said.Len()+len(p) > mostSaid:
			return 0, io.ErrClosedPipe
		case c.answers.Len() <= mostUnread:
			c.said.Write(p)
			c.work()
			return len(p), nil
		}
		c.wait()
	}
}

// wait waits for a change, at most until the deadline.
func (c *conn) wait() {
	if !c.deadline.IsZero() {
		defer time.AfterFunc(time.Until(c.deadline), c.wake).Stop()
	}
	c.changed.Wait()
}

// broken returns why nothing can be read or written; nil: it can.
func (c *conn) broken() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.life.Err() != nil:
		return errEnded
	case !c.deadline.IsZero() && !time.Now().Before(c.deadline):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// work answers the requests that are whole, one after the other.
func (c *conn) work() {
	for c.late == nil && c.said.Len() > 0 && c.request() {
	}
	recycle(&c.said)
	c.changed.Broadcast()
}

// request answers a request, if there is a whole one.
func (c *conn) request() bool {
	said := c.said.Bytes()
	c.text.Reset(said)
	c.in.Reset(&c.text)
	err := c.head.Read(c.in)
	begin := len(said) - c.text.Len() - c.in.Buffered() // of the body
	var body []byte
	switch {
	case err != nil:
	case c.head.Chunked:
		body, err = c.head.Body(c.in, mostSaid)
		begin, c.head.Length = len(said)-c.text.Len()-c.in.Buffered(), 0
	case c.head.Length > len(said)-begin:
		return false
	case c.head.Length > 0:
		body = said[begin : begin+c.head.Length]
	}
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return false
	case err != nil:
		c.over = true
		c.answer("", 0, http.StatusBadRequest, []byte(err.Error()))
		c.said.Reset()
		return false
	}
	c.over = c.over || c.head.Close
	path := pathOf(c.head.First)
	status, answer, late := Answer(path, body)
	length := len(body)
	c.said.Next(begin + max(c.head.Length, 0))
	if late == 0 {
		c.answer(path, length, status, answer)
		return true
	}
	c.late = time.AfterFunc(late, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.late = nil
		c.answer(path, length, status, answer)
		c.work()
	})
	return true
}

// pathOf is the path in a line such as "POST /run HTTP/1.1".
func pathOf(line []byte) string {
	_, path, _ := bytes.Cut(line, []byte{' '})
	path, _, _ = bytes.Cut(path, []byte{' '})
	for _, known := range [...]string{"/run", "/init"} {
		if string(path) == known {
			return known
		}
	}
	return string(path)
}

func (c *conn) answer(path string, length, status int, body []byte) {
	if path == "/run" {
		c.ran(status, length)
	}
	head := append(c.answers.AvailableBuffer(), "HTTP/1.1 "...)
	head = append(strconv.AppendInt(head, int64(status), 10), ' ')
	head = append(head, http.StatusText(status)...)
	head = append(head, "\r\nContent-Type: application/json\r\nContent-Length: "...)
	head = append(strconv.AppendInt(head, int64(len(body)), 10), "\r\n\r\n"...)
	c.answers.Write(head)
	c.answers.Write(body)
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		err := c.broken()
		switch {
		case err != nil:
			return 0, err
		case c.answers.Len() > 0:
			n, err := c.answers.Read(p)
			recycle(&c.answers)
			c.changed.Broadcast()
			return n, err
		case c.over && c.late == nil:
			return 0, io.EOF
		}
		c.wait()
	}
}

// recycle has an empty buffer used again from its beginning, unless it has grown.
func recycle(b *bytes.Buffer) {
	switch {
	case b.Len() > 0:
	case b.Cap() > mostKept:
		*b = bytes.Buffer{}
	default:
		b.Reset()
	}
}

// CloseWrite says that no more requests come.
func (c *conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.changed.Broadcast()
	return nil
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.left()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.late != nil {
		c.late.Stop()
	}
	c.changed.Broadcast()
	return nil
}

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	c.changed.Broadcast()
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { return c.SetDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.SetDeadline(t) }

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return address{} }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return address{} }

type address struct{}

func (address) Network() string { return "sim" }
func (address) String() string  { return "sim" }
