package http

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// A box is a sandbox whose ports are dialled so.
type box struct {
	sandbox.Sandbox
	dial func(port int) (net.Conn, error)
}

func (b box) Dial(_ context.Context, port int) (net.Conn, error) { return b.dial(port) }

func TestItIsReadyWhenAProbeIsAnsweredWell(t *testing.T) {
	for probe, path := range map[string]string{"": "/", "healthz": "/healthz", "/a/b?c=d": "/a/b"} {
		var probes atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || r.URL.Path != path {
				t.Errorf("probed by %s %s", r.Method, r.URL)
			}
			switch probes.Add(1) {
			case 2:
				w.WriteHeader(http.StatusServiceUnavailable)
			case 3:
				panic(http.ErrAbortHandler)
			case 4:
				w.Header().Set("Location", "http://elsewhere/")
				w.WriteHeader(http.StatusFound)
			}
		}))
		dials := 0
		r := New(box{dial: func(port int) (net.Conn, error) {
			if dials++; dials == 1 || port != 9000 {
				return nil, errors.New("nobody listens")
			}
			if dials == 2 {
				probes.Add(1) // the answer is not HTTP
				ours, theirs := net.Pipe()
				go func() {
					theirs.Read(make([]byte, 1<<10))
					theirs.Write([]byte("SSH-2.0\r\n"))
					theirs.Close()
				}()
				return ours, nil
			}
			return net.Dial("tcp", server.Listener.Addr().String())
		}}, 9000, probe)
		if err := r.Ready(t.Context()); err != nil || probes.Load() != 4 {
			t.Errorf("probe %q: after %d probes: %v", probe, probes.Load(), err)
		}
		server.Close()
	}
}

// Whoever gives up learns what the last probe met, though it is another that is given up.
func TestItIsWaitedForAsLongAsTheCallerLikes(t *testing.T) {
	late := errors.New("not done in time")
	ctx, giveUp := context.WithCancelCause(t.Context())
	var probes atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if probes.Add(1) == 1 {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		giveUp(late)
		<-r.Context().Done()
	}))
	defer server.Close()
	r := New(box{dial: func(int) (net.Conn, error) {
		return net.Dial("tcp", server.Listener.Addr().String())
	}}, 9000, "/ready")
	if err := r.Ready(ctx); !errors.Is(err, late) || !strings.Contains(err.Error(), "404") {
		t.Error(err)
	}
}

func TestItTakesNoFunctions(t *testing.T) {
	r := New(nil, 9000, "")
	_, _, init := r.Init(t.Context(), nil)
	_, _, run := r.Run(t.Context(), nil, time.Time{})
	if !errors.Is(init, errors.ErrUnsupported) || !errors.Is(run, errors.ErrUnsupported) {
		t.Errorf("%v, %v", init, run)
	}
	if lines := r.Logs(t.Context(), time.Time{}); len(lines) > 0 {
		t.Error(lines)
	}
}

// A program none of whose paths can be asked is ready when it listens.
func TestAConnectionIsEnough(t *testing.T) {
	dials := 0
	r := New(box{dial: func(int) (net.Conn, error) {
		if dials++; dials < 3 {
			return nil, errors.New("nobody listens")
		}
		ours, theirs := net.Pipe()
		theirs.Close()
		return ours, nil
	}}, 9000, TCP)
	if err := r.Ready(t.Context()); err != nil || dials != 3 {
		t.Errorf("after %d dials: %v", dials, err)
	}
}

// A prober is a sandbox in which a program ends with those statuses, one after the other.
type prober struct {
	box
	ends []int
	ran  [][]string
}

func (p *prober) Exec(_ context.Context, command []string) (int, error) {
	p.ran = append(p.ran, command)
	status := p.ends[0]
	p.ends = p.ends[1:]
	return status, nil
}

// A program may be probed by another beside it.
func TestACommandProbes(t *testing.T) {
	p := &prober{ends: []int{1, 0}}
	if err := New(p, 9000, "", "check", "it").Ready(t.Context()); err != nil || len(p.ran) != 2 ||
		strings.Join(p.ran[1], " ") != "check it" {
		t.Errorf("%q, %v", p.ran, err)
	}
	if err := New(box{}, 9000, "", "check").Ready(t.Context()); !errors.Is(err, errNoExec) {
		t.Error(err)
	}
}
