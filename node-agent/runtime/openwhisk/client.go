package openwhisk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk/http1"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

const (
	// The longest answer, in bytes. It is above what OpenWhisk passes on (1 MiB), so that the
	// caller can tell "too long" from "cut off".
	maxAnswer = 8 << 20

	// A body up to this length is sent with its head in one write. A runtime may answer a longer
	// one before it has read all of it.
	atOnce = 16 << 10

	// A connection is kept this long for the next request: for less time than a runtime keeps it
	// (Node.js: 5 s), since a runtime may close it just when a request is on its way. Such a
	// request could not be sent again: the runtime may have seen it.
	idle = 3 * time.Second

	mostInterim = 16 // answers of 1xx before the real one
)

// A client posts to one runtime. Its connections are kept between requests.
type client struct {
	dial func(ctx context.Context) (net.Conn, error)

	mu     sync.Mutex
	idle   []*conn     // the one used last is the last
	expiry *time.Timer // nil: no connection idles
}

// dialler returns how the runtime is dialled that listens on port of s.
func dialler(s sandbox.Sandbox, port int) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return s.Dial(ctx, port) }
}

// A conn is a connection to a runtime, for one request at a time.
type conn struct {
	net.Conn
	in    *bufio.Reader
	out   []byte
	head  http1.Head
	since time.Time // it idles
}

// post sends body to path and returns the whole answer. It gives up at until, unless that is zero:
// a context with that deadline would cost as many allocations as all the rest.
func (c *client) post(
	ctx context.Context, path string, body []byte, until time.Time,
) (int, []byte, error) {
	conn, err := c.take(ctx, until)
	if err != nil {
		return 0, nil, fmt.Errorf("runtime %s: %w", path, because(ctx, err))
	}
	conn.SetDeadline(until)
	left := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	status, answer, err := conn.exchange(path, body)
	if stays := left(); stays && err == nil && !conn.head.Close && conn.in.Buffered() == 0 {
		c.keep(conn)
	} else {
		conn.Close()
	}
	if err != nil {
		return 0, nil, fmt.Errorf("runtime %s: %w", path, because(ctx, err))
	}
	return status, answer, nil
}

// because prefers the reason why ctx ended to the error that its end brought about.
func because(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return context.DeadlineExceeded
	}
	return err
}

// take returns a connection that idles, or a new one.
func (c *client) take(ctx context.Context, until time.Time) (*conn, error) {
	for {
		conn := c.pop()
		if conn == nil {
			break
		}
		if conn.silent() {
			return conn, nil
		}
		conn.Close()
	}
	if !until.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	nc, err := c.dial(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", sandbox.ErrUnreached, err)
	}
	return &conn{Conn: nc, in: bufio.NewReader(nc)}, nil
}

func (c *client) pop() (last *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.idle); n > 0 {
		last = c.idle[n-1]
		c.idle[n-1] = nil
		c.idle = c.idle[:n-1]
	}
	return last
}

func (c *client) keep(conn *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn.SetDeadline(time.Time{})
	conn.since = time.Now()
	c.idle = append(c.idle, conn)
	if c.expiry == nil {
		c.expiry = time.AfterFunc(idle, c.expire)
	}
}

// expire closes the connections that have idled for long enough.
func (c *client) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expiry = nil
	old := 0
	for old < len(c.idle) && time.Since(c.idle[old].since) >= idle {
		c.idle[old].Close()
		old++
	}
	c.idle = append(c.idle[:0], c.idle[old:]...)
	if len(c.idle) > 0 {
		c.expiry = time.AfterFunc(idle-time.Since(c.idle[0].since), c.expire)
	}
}

// silent reports whether an idle connection is still open and nothing has come on it. A runtime may
// hang up earlier than most runtimes do, and bytes that nobody asked for are not an answer.
func (c *conn) silent() bool {
	socket, is := c.Conn.(syscall.Conn)
	return !is || isSilent(socket)
}

func isSilent(socket syscall.Conn) (is bool) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Read(func(fd uintptr) bool {
		var first [1]byte
		_, _, err := unix.Recvfrom(int(fd), first[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		is = errors.Is(err, unix.EAGAIN)
		return true
	})
	return is && err == nil
}

// exchange sends a request and reads its answer.
func (c *conn) exchange(path string, body []byte) (status int, answer []byte, err error) {
	c.out = append(append(append(c.out[:0], "POST "...), path...), " HTTP/1.1\r\n"+
		"Host: runtime\r\nContent-Type: application/json\r\nContent-Length: "...)
	c.out = append(strconv.AppendInt(c.out, int64(len(body)), 10), "\r\n\r\n"...)
	if len(body) <= atOnce {
		c.out, body = append(c.out, body...), nil
	}
	if n, err := c.Write(c.out); n == 0 && err != nil {
		return 0, nil, fmt.Errorf("%w: %w", sandbox.ErrUnreached, err)
	} else if err != nil {
		return 0, nil, err
	}
	if body != nil {
		sent := make(chan error, 1)
		go func() { _, err := c.Write(body); sent <- err }()
		defer func() { err = c.sent(sent, err) }()
	}
	return c.answer()
}

// sent waits for the rest of a request, unless it has been answered before it was sent: then nobody
// reads it any more. That it cannot be sent explains why no answer came.
func (c *conn) sent(sent <-chan error, failed error) error {
	select {
	case err := <-sent:
		if failed == nil {
			c.head.Close = c.head.Close || err != nil
			return nil
		}
		return errors.Join(err, failed)
	default:
	}
	c.head.Close = true
	c.Close()
	<-sent
	return failed
}

// answer reads an answer.
func (c *conn) answer() (status int, body []byte, err error) {
	for range mostInterim {
		if err := c.head.Read(c.in); err != nil {
			return 0, nil, err
		}
		if status, err = statusOf(c.head.First); err != nil {
			return 0, nil, err
		}
		if status >= 200 {
			return c.body(status)
		}
	}
	return 0, nil, fmt.Errorf("it has sent %d interim answers", mostInterim)
}

func (c *conn) body(status int) (int, []byte, error) {
	if status == 204 || status == 304 {
		return status, nil, nil
	}
	c.head.Close = c.head.Close || c.head.Length < 0 && !c.head.Chunked
	body, err := c.head.Body(c.in, maxAnswer)
	switch {
	case errors.Is(err, http1.ErrLong):
		return 0, nil, fmt.Errorf("answer is longer than %d bytes", maxAnswer)
	case err != nil:
		return 0, nil, fmt.Errorf("answer broke off after %d bytes: %w", len(body), err)
	}
	return status, body, nil
}

// statusOf reads the status in a line such as "HTTP/1.1 200 OK".
func statusOf(line []byte) (int, error) {
	const version = len("HTTP/1.1 ")
	if len(line) >= version+3 && string(line[:5]) == "HTTP/" {
		status, err := strconv.Atoi(string(line[version : version+3]))
		if err == nil && status >= 100 {
			return status, nil
		}
	}
	return 0, fmt.Errorf("its answer is not HTTP/1.1: it begins with %.40q", line)
}
