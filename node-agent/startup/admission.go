package startup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fastiov/fastiov/node-agent/vf"
)

// VFPool is what admission needs of the VF pool.
type VFPool interface {
	// Lease never waits for a VF by vfio; the error is the reason there is none.
	Lease(owner vf.Owner, want vf.Want) (vf.Lease, error)
	Return(vf.Lease)
}

// Refused says that the node had no room for a start within the time its caller allowed, and why.
type Refused struct{ Reason string }

func (r *Refused) Error() string { return "no room for another sandbox: " + r.Reason }

// A Lack is what starts wait for.
type Lack string

const (
	LackMemory Lack = "memory"
	LackVF     Lack = "vf"
	LackLink   Lack = "link"  // there are VFs, on a PF without a carrier
	LackOther  Lack = "other" // the VF pool is closed, or cannot write its journal
)

// Lacks are all of them.
var Lacks = []Lack{LackMemory, LackVF, LackLink, LackOther}

var errMemory = errors.New("no memory")

// A Grant is memory and a VF, reserved together and given back together.
type Grant struct {
	VF        *vf.Lease // nil on a node without VFs
	MemoryMiB int
}

// Admission hands out what a node can carry. Waiters are served in order of arrival, so that a large one is not starved by small ones.
type Admission struct {
	pool      VFPool // nil: sandboxes have no network
	totalMiB  int
	mu        sync.Mutex
	usedMiB   int
	waiters   []*waiter
	throttled error // why the head of the queue waits
}

type waiter struct {
	id        string
	memoryMiB int
	granted   chan *Grant
}

// NewAdmission gives out totalMiB of memory and the VFs of pool.
func NewAdmission(totalMiB int, pool VFPool) *Admission {
	return &Admission{pool: pool, totalMiB: totalMiB}
}

// Fits refuses what the node could not carry if it were empty.
func (a *Admission) Fits(memoryMiB int) error {
	if memoryMiB > a.totalMiB {
		return &Refused{fmt.Sprintf("it asks for %d MiB and the node has %d; use less memory or a larger node", memoryMiB, a.totalMiB)}
	}
	return nil
}

// Acquire reserves memory and a VF for the sandbox id, waiting at most wait for them.
func (a *Admission) Acquire(ctx context.Context, id string, memoryMiB int, wait time.Duration) (*Grant, error) {
	if err := a.Fits(memoryMiB); err != nil {
		return nil, err
	}
	w := &waiter{id: id, memoryMiB: memoryMiB, granted: make(chan *Grant, 1)}
	a.mu.Lock()
	a.waiters = append(a.waiters, w)
	a.mu.Unlock()
	a.Serve()

	select {
	case g := <-w.granted:
		return g, nil
	default:
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errWaited)
	defer cancel()
	select {
	case g := <-w.granted:
		return g, nil
	case <-ctx.Done():
	}
	reason, g := a.leave(w)
	switch {
	case g != nil:
		return g, nil
	case !errors.Is(context.Cause(ctx), errWaited):
		return nil, context.Cause(ctx)
	default:
		return nil, &Refused{fmt.Sprintf("%s; waited %s", reason, wait)}
	}
}

var errWaited = errors.New("waited long enough")

// leave takes w out of the queue and says why it waited, unless it was granted in the meantime.
func (a *Admission) leave(w *waiter) (reason string, g *Grant) {
	defer a.Serve() // whoever stood behind w may have room now
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, other := range a.waiters {
		if other == w {
			a.waiters = append(a.waiters[:i], a.waiters[i+1:]...)
			return fmt.Sprintf("%v, %d ahead", a.throttled, i), nil
		}
	}
	return "", <-w.granted
}

// Serve grants what can be granted now. Call it whenever something has come back.
func (a *Admission) Serve() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.waiters) > 0 {
		w := a.waiters[0]
		g, err := a.reserve(w)
		if err != nil {
			a.throttled = err
			return
		}
		a.waiters = a.waiters[1:]
		w.granted <- g
	}
}

func (a *Admission) reserve(w *waiter) (*Grant, error) {
	if free := a.totalMiB - a.usedMiB; w.memoryMiB > free {
		return nil, fmt.Errorf("%w: %d MiB asked, %d of %d free", errMemory, w.memoryMiB, free, a.totalMiB)
	}
	g := &Grant{MemoryMiB: w.memoryMiB}
	if a.pool != nil {
		lease, err := a.pool.Lease(vf.Owner{Kind: vf.Sandbox, Name: w.id}, vf.Want{})
		if err != nil {
			return nil, err
		}
		g.VF = &lease
	}
	a.usedMiB += w.memoryMiB
	return g, nil
}

// Adopt accounts for a sandbox that runs already; its memory is in use whether or not the total allows it.
func (a *Admission) Adopt(g *Grant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.usedMiB += g.MemoryMiB
}

// Release gives a grant back.
func (a *Admission) Release(g *Grant) {
	if g.VF != nil {
		a.pool.Return(*g.VF)
	}
	a.mu.Lock()
	a.usedMiB -= g.MemoryMiB
	a.mu.Unlock()
	a.Serve()
}

// Usage says what is given out and how many starts wait.
func (a *Admission) Usage() (usedMiB, totalMiB, waiting int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.usedMiB, a.totalMiB, len(a.waiters)
}

// Lack is what the first of those that wait waits for, and the others with it; where nobody waits, what the last one waited for.
func (a *Admission) Lack() Lack {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case errors.Is(a.throttled, errMemory):
		return LackMemory
	case errors.Is(a.throttled, vf.ErrEmpty):
		return LackVF
	case errors.Is(a.throttled, vf.ErrLinkDown):
		return LackLink
	}
	return LackOther
}
