// Package http speaks to a program that serves plain HTTP, of whatever kind: it waits until the
// program is ready. Requests are not the agent's business: they go to the program by the node API's
// Connect, byte by byte, and both ways at once.
package http

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

const (
	probeFirst  = 5 * time.Millisecond // between probes, doubled up to probeMost
	probeMost   = 200 * time.Millisecond
	probeWithin = 2 * time.Second // a probe that is not answered by then is made again
)

// A Runtime is the program in one sandbox.
type Runtime struct {
	probe     string // empty: a connection is enough
	command   []string
	box       sandbox.Sandbox
	transport http.Transport
}

// TCP is the probe of a program that is ready when its port takes a connection.
const TCP = "tcp:"

// New returns the program in s that listens on port, and is ready when it answers a GET of the path
// probe; empty: of /. With a command it is ready when that has ended in the sandbox with status 0.
func New(s sandbox.Sandbox, port int, probe string, command ...string) *Runtime {
	r := &Runtime{box: s, command: command}
	if probe != TCP {
		r.probe = "http://program/" + strings.TrimPrefix(probe, "/")
	}
	r.transport = http.Transport{
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return s.Dial(ctx, port)
		},
	}
	return r
}

// Ready probes the program until it answers with a status from 200 to 399, or takes a connection.
func (r *Runtime) Ready(ctx context.Context) error {
	var met error // by the last probe that ctx did not end
	for pause := probeFirst; ; pause = min(2*pause, probeMost) {
		err := r.once(ctx)
		if err == nil || errors.Is(err, errNoExec) {
			return err
		}
		if met == nil || ctx.Err() == nil {
			met = err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("the program is not ready: %w: %w", context.Cause(ctx), met)
		}
	}
}

func (r *Runtime) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	if len(r.command) > 0 {
		return r.exec(ctx)
	}
	if r.probe == "" {
		conn, err := r.transport.DialContext(ctx, "", "")
		if err == nil {
			conn.Close()
		}
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.probe, nil)
	if err != nil {
		return err
	}
	response, err := r.transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, 1<<20) // the program may dislike being cut off
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("GET %s answers %s", request.URL.Path, response.Status)
	}
	return nil
}

var errNoExec = errors.New("its driver runs no second program in a sandbox; " +
	"have it probed by a GET or a connection")

func (r *Runtime) exec(ctx context.Context) error {
	box, can := r.box.(sandbox.Executor)
	if !can {
		return errNoExec
	}
	status, err := box.Exec(ctx, r.command)
	if err == nil && status != 0 {
		err = fmt.Errorf("%s ends with status %d", r.command[0], status)
	}
	return err
}

var errNoFunctions = fmt.Errorf("the program speaks plain HTTP and takes no functions: "+
	"reach its port by Connect (%w)", errors.ErrUnsupported)

// Init returns an error: the program is whole as it is.
func (r *Runtime) Init(context.Context, []byte) (int, []byte, error) {
	return 0, nil, errNoFunctions
}

// Run returns an error: requests go by Connect.
func (r *Runtime) Run(context.Context, []byte, time.Time) (int, []byte, error) {
	return 0, nil, errNoFunctions
}

// Logs returns nothing: lines belong to no call.
func (r *Runtime) Logs(context.Context, time.Time) []wire.LogLine { return nil }
