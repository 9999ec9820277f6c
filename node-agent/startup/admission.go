package startup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// A NetPath is a way to the network, by which each sandbox gets a NIC of its own.
type NetPath interface {
	// Lease gives the sandbox id a NIC. It never waits; the error is the reason there is none.
	Lease(id string) (Lease, error)
	// Own writes down which process uses the NIC, before it does.
	Own(Lease, sandbox.Record) error
	// Fault takes an error of the NIC that its sandbox saw.
	Fault(l Lease, why string)
	Return(Lease)
	// Left returns the leases that sandboxes of a former agent hold.
	Left() []Lease
}

// A Publisher is a path by which others may reach a port of a sandbox.
type Publisher interface {
	// Publish has a port of the host lead to one of the lease's sandbox, until that is returned.
	Publish(Lease, Publication) error
}

// A Belated path may return a lease only after Return has, and then says so.
type Belated interface {
	// Late has the path call returned then.
	Late(returned func())
}

// A Publication is a port of the host that leads to one of a sandbox.
type Publication struct {
	Protocol string // tcp or udp
	HostPort uint16
	Port     uint16
}

// ErrUnpublished is the error of a publication on another path.
var ErrUnpublished = errors.New("it has no port of a bridge, and so none to publish;" +
	" use `fastiov connect`")

// ErrTaken is the error of a publication whose port of the host has another user.
var ErrTaken = errors.New("this port of the host is in use; choose another")

// A Lease is a NIC that its sandbox has until it is returned.
type Lease struct {
	NIC        sandbox.NIC // without an address
	Number     int         // of the NIC on this node: the same after a restart
	Generation uint64      // of the lease
	ID         string      // of the sandbox; empty where nobody knows
	PID        int         // of the process that uses the NIC, once that is written down
	StartTicks uint64      // of that process
	Gone       bool        // the NIC is not there any more
}

// Refused says that the node had no room for a start within the time its caller allowed, and why.
type Refused struct{ Reason string }

func (r *Refused) Error() string { return "no room for another sandbox: " + r.Reason }

// A Lack names what starts wait for.
type Lack string

const (
	LackMemory Lack = "memory"
	LackNIC    Lack = "vf"    // the label is older than the name
	LackLink   Lack = "link"  // the only free NICs are on a card without a carrier
	LackOther  Lack = "other" // the path to the network is closed, or cannot write down a lease
)

// Lacks lists all of them.
var Lacks = []Lack{LackMemory, LackNIC, LackLink, LackOther}

// Lacking is the error of a reservation that may succeed later.
type Lacking struct {
	Lack Lack
	Err  error
}

func (l *Lacking) Error() string { return l.Err.Error() }
func (l *Lacking) Unwrap() error { return l.Err }

// A Grant is memory and a NIC, reserved together and given back together.
type Grant struct {
	NIC       *Lease // nil on a node without a path to the network
	MemoryMiB int
}

// Admission hands out what a node can carry. Waiters are served in order of arrival, so that small
// ones do not starve a large one.
type Admission struct {
	path      NetPath // nil: sandboxes have no network
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

// NewAdmission gives out totalMiB of memory and the NICs of path.
func NewAdmission(totalMiB int, path NetPath) *Admission {
	a := &Admission{path: path, totalMiB: totalMiB}
	if late, can := path.(Belated); can {
		late.Late(a.Serve)
	}
	return a
}

// Publish has a port of the host lead to the sandbox with that grant.
func (a *Admission) Publish(g *Grant, p Publication) error {
	publisher, can := a.path.(Publisher)
	if !can || g == nil || g.NIC == nil {
		return ErrUnpublished
	}
	return publisher.Publish(*g.NIC, p)
}

// Fits refuses what the node could not carry if it were empty.
func (a *Admission) Fits(memoryMiB int) error {
	if memoryMiB > a.totalMiB {
		return &Refused{fmt.Sprintf(
			"it asks for %d MiB and the node has %d; use less memory or a larger node",
			memoryMiB, a.totalMiB)}
	}
	return nil
}

// Acquire reserves memory and a NIC for the sandbox id, waiting at most wait for them.
func (a *Admission) Acquire(ctx context.Context, id string, memoryMiB int,
	wait time.Duration) (*Grant, error) {
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
	defer a.Serve() // the waiters behind w may have room now
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
		err := fmt.Errorf("no memory: %d MiB asked, %d of %d free", w.memoryMiB, free, a.totalMiB)
		return nil, &Lacking{LackMemory, err}
	}
	g := &Grant{MemoryMiB: w.memoryMiB}
	if a.path != nil {
		lease, err := a.path.Lease(w.id)
		if err != nil {
			return nil, err
		}
		g.NIC = &lease
	}
	a.usedMiB += w.memoryMiB
	return g, nil
}

// Left returns the NICs that sandboxes of a former agent hold.
func (a *Admission) Left() []Lease {
	if a.path == nil {
		return nil
	}
	return a.path.Left()
}

// Adopt accounts for a sandbox that runs already. Its memory is in use whether or not the total
// allows it.
func (a *Admission) Adopt(g *Grant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.usedMiB += g.MemoryMiB
}

// Release gives a grant back.
func (a *Admission) Release(g *Grant) {
	if g.NIC != nil {
		a.path.Return(*g.NIC)
	}
	a.mu.Lock()
	a.usedMiB -= g.MemoryMiB
	a.mu.Unlock()
	a.Serve()
}

// Usage returns the memory given out, the total, and the number of starts that wait.
func (a *Admission) Usage() (usedMiB, totalMiB, waiting int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.usedMiB, a.totalMiB, len(a.waiters)
}

// Lack returns what the first waiter waits for, and the others with it. If no start waits, it
// returns what the last one waited for.
func (a *Admission) Lack() Lack {
	a.mu.Lock()
	defer a.mu.Unlock()
	if lacking := (*Lacking)(nil); errors.As(a.throttled, &lacking) {
		return lacking.Lack
	}
	return LackOther
}
