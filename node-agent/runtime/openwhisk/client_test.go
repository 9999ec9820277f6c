package openwhisk

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// served returns a client of a real HTTP server that handles its requests so, and how often the
// client has dialled.
func served(t *testing.T, handler http.HandlerFunc) (c *client, dialled *atomic.Int32) {
	t.Helper()
	server := httptest.NewServer(handler)
	dialled = new(atomic.Int32)
	c = newClient(func(ctx context.Context) (net.Conn, error) {
		dialled.Add(1)
		return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
	t.Cleanup(func() { c.http.CloseIdleConnections(); server.Close() })
	return c, dialled
}

func TestPost(t *testing.T) {
	c, _ := served(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(502)
		io.WriteString(w, r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type")+" "+string(body))
	})
	status, answer, err := c.Post(t.Context(), "/run", []byte("{}"), time.Time{})
	if err != nil || status != 502 || string(answer) != "POST /run application/json {}" {
		t.Errorf("%d %q %v", status, answer, err)
	}
}

// TestNoCallMeetsARuntimeThatHangsUp: Node.js closes what idles for 5 s, and may do so just when a
// call is on its way.
func TestNoCallMeetsARuntimeThatHangsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dialled := 0
		c := newClient(func(context.Context) (net.Conn, error) {
			dialled++
			ours, theirs := net.Pipe()
			go func() {
				defer theirs.Close()
				for requests := bufio.NewReader(theirs); ; {
					r, err := http.ReadRequest(requests)
					if err != nil {
						return
					}
					io.Copy(io.Discard, r.Body)
					io.WriteString(theirs, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
				}
			}()
			return ours, nil
		})
		defer c.http.CloseIdleConnections()
		for _, call := range []struct {
			after time.Duration
			want  int
		}{{0, 1}, {time.Second, 1}, {time.Second, 1}, {5 * time.Second, 2}} {
			time.Sleep(call.after)
			if _, _, err := c.Post(t.Context(), "/run", []byte("{}"), time.Time{}); err != nil {
				t.Fatal(err)
			}
			if dialled != call.want {
				t.Errorf("%s after a call: %d connections were made, want %d",
					call.after, dialled, call.want)
			}
		}
	})
}

func TestAnAnswerHasABound(t *testing.T) {
	c, _ := served(t, func(w http.ResponseWriter, r *http.Request) {
		for chunk := strings.Repeat("x", 1<<20); ; {
			if _, err := io.WriteString(w, chunk); err != nil {
				return
			}
		}
	})
	_, _, err := c.Post(t.Context(), "/run", nil, time.Time{})
	if err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("%v, want longer than", err)
	}
}

func TestACancelledPostSaysWhy(t *testing.T) {
	why := errors.New("the caller went away")
	ctx, cancel := context.WithCancelCause(t.Context())
	c, _ := served(t, func(w http.ResponseWriter, r *http.Request) {
		cancel(why)
		<-r.Context().Done()
	})
	if _, _, err := c.Post(ctx, "/run", nil, time.Time{}); !errors.Is(err, why) {
		t.Errorf("%v, want %v", err, why)
	}
}

func TestARuntimeThatDiesMidAnswer(t *testing.T) {
	c, _ := served(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "half")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	_, _, err := c.Post(t.Context(), "/run", nil, time.Time{})
	if err == nil || !strings.Contains(err.Error(), "broke off after 4 bytes") {
		t.Errorf("%v, want broke off", err)
	}
}

func TestNobodyListens(t *testing.T) {
	c := newClient(func(context.Context) (net.Conn, error) {
		return nil, errors.New("no such guest")
	})
	_, _, err := c.Post(t.Context(), "/init", nil, time.Time{})
	const want = "runtime /init: not reached: no such guest"
	if !errors.Is(err, sandbox.ErrUnreached) || err.Error() != want {
		t.Errorf("%v", err)
	}
}

// A call to a runtime that was called before opens no connection: what that costs is paid once.
func TestTheConnectionIsKept(t *testing.T) {
	c, dialled := served(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Write(body[:len(body)/2])
		if len(body)%2 == 0 {
			http.NewResponseController(w).Flush() // so it is sent in chunks
		}
		w.Write(body[len(body)/2:])
	})
	for i := range 100 {
		body := strings.Repeat("x", i*i)
		status, answer, err := c.Post(t.Context(), "/run", []byte(body), time.Time{})
		if err != nil || status != 200 || string(answer) != body {
			t.Fatalf("%d bytes: %d, %d bytes, %v", len(body), status, len(answer), err)
		}
	}
	// One that is not told in 50 ms that all was written is not used again. Were those with the
	// answers of one sort not used again, there would be 50.
	if n := dialled.Load(); n > 25 {
		t.Errorf("100 calls opened %d connections", n)
	}
}

// closes is a connection that tells when it is closed.
type closes struct {
	net.Conn
	tell func()
}

func (c closes) Close() error {
	c.tell()
	return c.Conn.Close()
}

// A runtime may keep its connections for a shorter time than the agent, or for one request.
func TestAConnectionThatWasClosedIsNotUsed(t *testing.T) {
	for _, says := range []bool{true, false} {
		closed := make(chan struct{}, 2)
		handle := func(w http.ResponseWriter, _ *http.Request) {
			if says {
				w.Header().Set("Connection", "close")
			}
		}
		server := httptest.NewUnstartedServer(http.HandlerFunc(handle))
		server.Config.ConnState = func(conn net.Conn, state http.ConnState) {
			if state == http.StateIdle {
				conn.Close()
			}
		}
		server.Start()
		c := newClient(func(ctx context.Context) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
			return closes{conn, sync.OnceFunc(func() { closed <- struct{}{} })}, err
		})
		for range 2 {
			if _, _, err := c.Post(t.Context(), "/run", nil, time.Time{}); err != nil {
				t.Errorf("it says so: %t, %v", says, err)
			}
			<-closed // by the client, which hears of the end a moment later
		}
		c.http.CloseIdleConnections()
		server.Close()
	}
}

// A runtime may answer before it has read all, and go on with the next request or hang up.
func TestAnEarlyAnswer(t *testing.T) {
	c, _ := served(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(413)
		_ = http.NewResponseController(w).Flush()
		time.Sleep(time.Second) // the server hangs up half a second after it has answered
	})
	for range 3 {
		status, _, err := c.Post(t.Context(), "/init", make([]byte, 48<<20), time.Time{})
		if err != nil || status != 413 {
			t.Errorf("%d, %v", status, err)
		}
	}
}

func TestAnswersThatAreNone(t *testing.T) {
	for said, want := range map[string]string{
		"":                        "EOF",
		"SSH-2.0-OpenSSH\r\n\r\n": "malformed HTTP",
		"HTTP/1.1 2x0 OK\r\n\r\n": "malformed HTTP",
		strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 16):            "EOF",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n": "",
	} {
		c := newClient(func(context.Context) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() {
				defer theirs.Close()
				_, _ = http.ReadRequest(bufio.NewReader(theirs))
				io.WriteString(theirs, said)
			}()
			return ours, nil
		})
		_, _, err := c.Post(t.Context(), "/run", nil, time.Time{})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", said, err, want)
		}
		c.http.CloseIdleConnections()
	}
}

// FuzzAnswer: whatever a runtime says, a call ends, with an error or an answer.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"))
	f.Add([]byte("HTTP/1.1 000 9\r\n\r\n{}"))
	f.Add([]byte("HTTP/1.1 100 \r\n\r\n" +
		"HTTP/1.1 502 X\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		ours, theirs := net.Pipe()
		go io.Copy(io.Discard, theirs)
		go func() {
			defer theirs.Close()
			theirs.Write(said)
		}()
		c := newClient(func(context.Context) (net.Conn, error) { return ours, nil })
		status, answer, err := c.Post(t.Context(), "/run", []byte("{}"), time.Time{})
		if err == nil && (status < 200 || status > 999) || len(answer) > maxAnswer {
			t.Fatalf("%d and %d bytes", status, len(answer))
		}
		c.http.CloseIdleConnections()
		ours.Close()
	})
}
