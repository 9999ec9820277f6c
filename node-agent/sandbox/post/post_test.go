package post

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func client(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(handler)
	c := To(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
	t.Cleanup(func() { c.Close(); server.Close() })
	return c
}

func TestPost(t *testing.T) {
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(502)
		io.WriteString(w, r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type")+" "+string(body))
	})
	status, answer, err := c.Post(t.Context(), "/run", []byte("{}"))
	if err != nil || status != 502 || string(answer) != "POST /run application/json {}" {
		t.Errorf("%d %q %v", status, answer, err)
	}
}

// TestNoCallMeetsARuntimeThatHangsUp: Node.js closes what idles for 5 s, and may do so just when a
// call is on its way.
func TestNoCallMeetsARuntimeThatHangsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dialled := 0
		c := To(func(context.Context) (net.Conn, error) {
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
		defer c.Close()
		for _, call := range []struct {
			after time.Duration
			want  int
		}{{0, 1}, {time.Second, 1}, {time.Second, 1}, {5 * time.Second, 2}} {
			time.Sleep(call.after)
			if _, _, err := c.Post(t.Context(), "/run", []byte("{}")); err != nil {
				t.Fatal(err)
			}
			if dialled != call.want {
				t.Errorf("%s after a call: %d connections were made, want %d", call.after, dialled, call.want)
			}
		}
	})
}

func TestAnAnswerHasABound(t *testing.T) {
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		for chunk := strings.Repeat("x", 1<<20); ; {
			if _, err := io.WriteString(w, chunk); err != nil {
				return
			}
		}
	})
	if _, _, err := c.Post(t.Context(), "/run", nil); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("%v, want longer than", err)
	}
}

func TestACancelledPostSaysWhy(t *testing.T) {
	why := errors.New("the caller went away")
	ctx, cancel := context.WithCancelCause(t.Context())
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		cancel(why)
		<-r.Context().Done()
	})
	if _, _, err := c.Post(ctx, "/run", nil); !errors.Is(err, why) {
		t.Errorf("%v, want %v", err, why)
	}
}

func TestARuntimeThatDiesMidAnswer(t *testing.T) {
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "half")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	if _, _, err := c.Post(t.Context(), "/run", nil); err == nil || !strings.Contains(err.Error(), "broke off after 4 bytes") {
		t.Errorf("%v, want broke off", err)
	}
}

func TestNobodyListens(t *testing.T) {
	c := To(func(context.Context) (net.Conn, error) { return nil, errors.New("no such guest") })
	if _, _, err := c.Post(t.Context(), "/init", nil); !errors.Is(err, sandbox.ErrUnreached) || err.Error() != "runtime /init: not reached: no such guest" {
		t.Errorf("%v", err)
	}
}

// A call to a runtime that was called before opens no connection: what that costs is paid once.
func TestTheConnectionIsKept(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	dialled := 0
	c := To(func(ctx context.Context) (net.Conn, error) {
		dialled++
		return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
	defer c.Close()
	for range 100 {
		if _, _, err := c.Post(t.Context(), "/run", []byte("{}")); err != nil {
			t.Fatal(err)
		}
	}
	if dialled != 1 {
		t.Errorf("100 calls opened %d connections", dialled)
	}
}
