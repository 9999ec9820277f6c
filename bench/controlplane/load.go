package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A load sends requests over several connections, each one at a time. Requests are made beforehand,
// and answers are skipped unread.
type load struct {
	address string
	conns   int
	want    int                   // the expected status
	next    func(conn int) []byte // the request that a connection sends next
}

// A tally counts the answers to a load.
type tally struct {
	answered, failed int64
	example          string // of a failure's answer
	elapsed          time.Duration
}

func (t *tally) add(other tally) {
	t.answered += other.answered
	t.failed += other.failed
	if t.example == "" {
		t.example = other.example
	}
}

// during sends as much as is answered in that time: a call begins when the one before has ended.
func (l *load) during(ctx context.Context, d time.Duration) (tally, error) {
	begin := time.Now()
	return l.closed(ctx, func() bool { return time.Since(begin) < d })
}

// times sends n requests.
func (l *load) times(ctx context.Context, n int) (tally, error) {
	var sent atomic.Int64
	return l.closed(ctx, func() bool { return sent.Add(1) <= int64(n) })
}

func (l *load) closed(ctx context.Context, more func() bool) (tally, error) {
	begin := time.Now()
	all, err := l.each(ctx, func(conn int, c *connection) (t tally, err error) {
		for more() {
			if err := c.call(l.next(conn), l.want, &t); err != nil {
				return t, err
			}
		}
		return t, nil
	})
	all.elapsed = time.Since(begin)
	return all, err
}

// at sends rate calls a second for that time, whether or not they are answered, as long as a
// connection is free. A call's latency counts from the time when it was due, so a server that
// delays one call is charged for the calls behind it. Latencies are in milliseconds.
func (l *load) at(ctx context.Context, rate float64, d time.Duration) (tally, []float64, error) {
	var (
		mu        sync.Mutex
		latencies []float64
		due       = make(chan time.Time, int(rate*d.Seconds())+1)
	)
	go func() {
		defer close(due)
		pace(ctx, rate, d, due)
	}()
	all, err := l.each(ctx, func(conn int, c *connection) (t tally, err error) {
		var mine []float64
		for at := range due {
			if err := c.call(l.next(conn), l.want, &t); err != nil {
				return t, err
			}
			mine = append(mine, float64(time.Since(at))/1e6)
		}
		mu.Lock()
		defer mu.Unlock()
		latencies = append(latencies, mine...)
		return t, nil
	})
	return all, latencies, err
}

// pace sends the time at which each call is due, at even distances. It sleeps in the kernel, since
// Go's timers are late by up to a millisecond.
func pace(ctx context.Context, rate float64, d time.Duration, due chan<- time.Time) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := time.Now()
	for n := range int(rate * d.Seconds()) {
		at := begin.Add(time.Duration(float64(n) / rate * float64(time.Second)))
		if ahead := time.Until(at); ahead > 0 {
			sleep := unix.NsecToTimespec(int64(ahead))
			// after an interruption this call is early, and the next one is on time again
			_ = unix.Nanosleep(&sleep, nil)
		}
		if ctx.Err() != nil {
			return
		}
		due <- at
	}
}

// each runs send on every connection at the same time.
func (l *load) each(
	ctx context.Context, send func(conn int, c *connection) (tally, error),
) (all tally, failed error) {
	var (
		wg sync.WaitGroup
		mu sync.Mutex
	)
	for conn := range l.conns {
		wg.Go(func() {
			var t tally
			c, err := dial(ctx, l.address)
			if err == nil {
				t, err = send(conn, c)
				c.close()
			}
			mu.Lock()
			defer mu.Unlock()
			all.add(t)
			if failed == nil {
				failed = err
			}
		})
	}
	wg.Wait()
	return all, failed
}

// A connection is kept open. It parses only as much HTTP as it must.
type connection struct {
	net.Conn
	answers *bufio.Reader
	forget  func() bool
}

func dial(ctx context.Context, address string) (*connection, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &connection{conn, bufio.NewReader(conn),
		context.AfterFunc(ctx, func() { conn.Close() })}, nil
}

func (c *connection) close() {
	c.forget()
	c.Close()
}

func (c *connection) call(request []byte, want int, t *tally) error {
	if _, err := c.Write(request); err != nil {
		return err
	}
	status, body, err := c.answer()
	if err != nil {
		return err
	}
	if status == want {
		t.answered++
		return nil
	}
	if t.failed++; t.example == "" {
		t.example = fmt.Sprintf("HTTP %d: %s", status, body)
	}
	return nil
}

// answer reads one answer. body is valid until the next one.
func (c *connection) answer() (status int, body []byte, err error) {
	length := -1
	for first := true; ; first = false {
		line, err := c.answers.ReadSlice('\n')
		switch {
		case err != nil:
			return 0, nil, fmt.Errorf("the answer's head: %w", err)
		case first:
			if len(line) < 12 {
				return 0, nil, fmt.Errorf("answer %q", line)
			}
			status = number(line[9:12])
		case bytes.HasPrefix(line, contentLength):
			length = number(bytes.TrimSpace(line[len(contentLength):]))
		}
		if len(line) == 2 {
			break
		}
	}
	if length < 0 || length > c.answers.Size() {
		return 0, nil, fmt.Errorf("HTTP %d with a body of %d bytes", status, length)
	}
	body, err = c.answers.Peek(length)
	if err == nil {
		_, err = c.answers.Discard(length)
	}
	return status, body, err
}

var contentLength = []byte("Content-Length: ")

func number(digits []byte) (n int) {
	for _, digit := range digits {
		n = n*10 + int(digit-'0')
	}
	return n
}

// request returns the bytes of a request.
func request(key, method, path, body string) []byte {
	return fmt.Appendf(nil,
		"%s /api/v1/namespaces/_/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		method, path, base64.StdEncoding.EncodeToString([]byte(key)), len(body), body)
}

// always returns the same request each time.
func always(request []byte) func(int) []byte { return func(int) []byte { return request } }

// inTurn returns the requests one after the other, over all connections.
func inTurn(requests [][]byte) func(int) []byte {
	var sent atomic.Int64
	return func(int) []byte { return requests[int(sent.Add(1)-1)%len(requests)] }
}

// shared gives every connection its own part of the requests, which it sends one after the other.
// So no request is under way twice at once.
func shared(requests [][]byte, conns int) func(int) []byte {
	own, sent := make([][][]byte, conns), make([]int, conns)
	for i, r := range requests {
		own[i%conns] = append(own[i%conns], r)
	}
	return func(conn int) []byte {
		sent[conn]++
		return own[conn][sent[conn]%len(own[conn])]
	}
}
