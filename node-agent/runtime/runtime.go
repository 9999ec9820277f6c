// Package runtime is how the agent speaks to the programs in its sandboxes. What a program speaks,
// its image says, or whoever starts it: OpenWhisk's protocol, or plain HTTP.
package runtime

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/runtime/http"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// A Protocol speaks to the program in one sandbox. Its methods may be called side by side. Where
// the program has seen nothing of a request, the error is sandbox.ErrUnreached.
type Protocol interface {
	// Ready returns when the program takes requests.
	Ready(ctx context.Context) error
	// Init gives the program its function. A protocol without functions has errors.ErrUnsupported.
	Init(ctx context.Context, function []byte) (status int, answer []byte, err error)
	// Run has the function called once, and gives up at until, unless that is zero.
	Run(ctx context.Context, call []byte, until time.Time) (status int, answer []byte, err error)
	// Logs takes the lines of one call that has been answered, and waits for them until then.
	Logs(ctx context.Context, until time.Time) []wire.LogLine
}

// A kind is a protocol by its name.
type kind struct {
	mark  string // what a line may end in that is complete without a newline
	speak func(s sandbox.Sandbox, p wire.Program, silent *atomic.Bool) Protocol
}

const standard = "openwhisk" // of images that name no protocol

var kinds = map[string]kind{
	standard: {openwhisk.Sentinel, openWhisk},
	"http": {"", func(s sandbox.Sandbox, p wire.Program, _ *atomic.Bool) Protocol {
		return http.New(s, p.Listens(), p.Probe, p.ProbeCommand...)
	}},
}

func openWhisk(s sandbox.Sandbox, p wire.Program, silent *atomic.Bool) Protocol {
	return openwhisk.New(s, p.Listens(), silent)
}

// Prepare completes a program by what its protocol needs of the guest.
func Prepare(p *wire.Program) error {
	if p.Protocol == "" {
		p.Protocol = standard
	}
	kind, known := kinds[p.Protocol]
	if !known {
		return fmt.Errorf("no protocol is named %.40q; there are %s", p.Protocol,
			strings.Join(slices.Sorted(maps.Keys(kinds)), " and "))
	}
	p.Mark = kind.mark
	return nil
}

// A Speaker speaks to programs, and remembers of their images what it has learned. Its zero value
// is ready for use.
type Speaker struct {
	silent sync.Map // *atomic.Bool by image, see openwhisk.New
}

// In returns the program that runs in s. One that a former agent started may not be prepared: it
// speaks OpenWhisk's protocol.
func (k *Speaker) In(s sandbox.Sandbox, spec sandbox.Spec) (Protocol, error) {
	p := spec.Program
	if err := Prepare(&p); err != nil {
		return nil, err
	}
	image := strings.Join(append([]string{spec.Root}, spec.Layers...), "\n")
	silent, _ := k.silent.LoadOrStore(image, new(atomic.Bool))
	return kinds[p.Protocol].speak(s, p, silent.(*atomic.Bool)), nil
}
