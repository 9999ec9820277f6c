// Package openwhisk speaks to a runtime of OpenWhisk: POST /init gives it its function, each POST
// /run is an activation, and a sentinel on stdout and on stderr ends the logs of an activation.
//
// The runtime is a stranger's code: how much it may answer and log is bounded.
package openwhisk

import (
	"cmp"
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// Sentinel ends the logs of an activation: a runtime writes it to stdout and to stderr.
const Sentinel = "XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX"

// A Direct sandbox is its own runtime: requests reach it without a connection. The simulation is
// one, so that what it is asked for measures the agent and no HTTP.
type Direct interface {
	// Post takes a request to the runtime, and gives up at until, unless that is zero.
	Post(
		ctx context.Context, path string, body []byte, until time.Time,
	) (status int, answer []byte, err error)
}

// A Runtime is the runtime in one sandbox.
type Runtime struct {
	direct Direct // the sandbox itself, or a client of its runtime
	logs   logs
}

// New returns the runtime in s, which listens on port. All those of an image share whether one was
// waited for in vain to write sentinels; nil: s is the only one.
func New(s sandbox.Sandbox, port int, silent *atomic.Bool) *Runtime {
	r := &Runtime{logs: logs{ended: s.Logs().Done(), silent: cmp.Or(silent, new(atomic.Bool))}}
	if direct, is := s.(Direct); is {
		r.direct = direct
	} else {
		dial := func(ctx context.Context) (net.Conn, error) { return s.Dial(ctx, port) }
		r.direct = newClient(dial)
	}
	s.Logs().Watch(r.logs.add)
	return r
}

// Ready returns at once: a sandbox has started when something accepts connections on its port.
func (r *Runtime) Ready(context.Context) error { return nil }

// Init gives the runtime its function.
func (r *Runtime) Init(
	ctx context.Context, function []byte,
) (status int, answer []byte, err error) {
	return r.direct.Post(ctx, "/init", function, time.Time{})
}

// Run has the function called once, and gives up at until, unless that is zero.
func (r *Runtime) Run(
	ctx context.Context, call []byte, until time.Time,
) (status int, answer []byte, err error) {
	return r.direct.Post(ctx, "/run", call, until)
}

// Logs takes what the runtime wrote since the last take, up to and without the sentinels that end
// an activation. It waits for them until then, unless that is zero, or ctx ends; for a runtime that
// has never written them ten seconds, or one where its image is known for that. A last line says
// that they did not come.
func (r *Runtime) Logs(ctx context.Context, until time.Time) []wire.LogLine {
	return r.logs.take(ctx, until)
}
