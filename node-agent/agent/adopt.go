package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// adoptWithin bounds how long a sandbox may take to answer a new agent.
const adoptWithin = 15 * time.Second

// headStart is the time for which a sandbox has the processors before the next one is asked: if
// hundreds were asked at once, the API could not answer.
const headStart = 5 * time.Millisecond

// A former sandbox is one that a former agent left. Its grant holds its memory and NIC, adopted or
// not, until it has ended.
type former struct {
	startup.Found
	grant *startup.Grant
	entry *entry
}

// Adopt enters what a former agent left, with what it holds, so that the API can be served. settle,
// which is called then, asks the sandboxes and returns when the last of them is settled. It takes
// over every sandbox whose record, lease of a NIC and own answer agree. It ends every other one by
// its cgroup, and only then returns its NIC. A silent one delays no other by more than headStart.
// If ctx ends, with the cause sandbox.ErrLetGo, those that are still being adopted are left to a
// later agent.
func (a *Agent) Adopt(ctx context.Context) (settle func() (adopted, ended int)) {
	found, unknown := a.found()
	for _, f := range found {
		a.Starter.Admission.Adopt(f.grant)
		a.mu.Lock()
		a.sandboxes[f.Spec.ID] = f.entry
		a.mu.Unlock()
	}
	return func() (int, int) {
		var adopted, ended atomic.Int32
		var asked sync.WaitGroup
		for _, f := range found {
			over := make(chan struct{})
			asked.Go(func() {
				defer close(over)
				switch err := a.settle(ctx, f); {
				case err == nil:
					adopted.Add(1)
				case !errors.Is(err, sandbox.ErrLetGo):
					ended.Add(1)
				}
			})
			select {
			case <-over:
			case <-time.After(headStart):
			}
		}
		asked.Wait()
		for _, lease := range unknown {
			if ctx.Err() == nil { // else one of their sandboxes may live on
				a.Starter.Admission.Release(&startup.Grant{NIC: &lease})
			}
		}
		return int(adopted.Load()), int(ended.Load())
	}
}

// found returns what a former agent left: its sandboxes, and the leases of NICs whose holder is
// unknown.
func (a *Agent) found() (found []*former, unknown []startup.Lease) {
	leases := map[string]*startup.Lease{}
	for _, lease := range a.Starter.Admission.Left() {
		if lease.ID == "" || leases[lease.ID] != nil {
			unknown = append(unknown, lease)
		} else {
			leases[lease.ID] = &lease
		}
	}
	meet := func(rec startup.Found, lease *startup.Lease) {
		if rec.Spec.NIC == nil && lease != nil { // its record is gone, or cannot be read
			rec.Spec.NIC = &lease.NIC
		}
		e := &entry{started: time.Now(), adopted: true, spec: rec.Spec, pid: rec.PID}
		f := &former{rec, &startup.Grant{NIC: lease}, e}
		if rec.Spec.MemoryMiB > 0 { // else its record could not be read
			f.grant.MemoryMiB = a.Starter.Needs(rec.Spec.MemoryMiB)
		}
		e.become(adopting, "")
		found = append(found, f)
	}
	for _, rec := range a.Starter.Records() {
		id := rec.Spec.ID
		meet(rec, leases[id])
		delete(leases, id)
	}
	for id, lease := range leases {
		rec := startup.Found{Err: errors.New("there is no record of it")}
		rec.Spec.ID, rec.Spec.Dir = id, a.Starter.Dir(id)
		meet(rec, lease)
	}
	return found, unknown
}

// settle adopts a sandbox, or ends it and says why not.
func (a *Agent) settle(ctx context.Context, f *former) error {
	id := f.Spec.ID
	st, err := a.takeOver(ctx, f)
	switch {
	case err == nil:
		if !a.ready(id, f.entry, st) {
			return errEndedFirst
		}
		a.Log.Info("adopted", "sandbox", id, "pid", f.PID)
		return nil
	case ctx.Err() != nil:
		return sandbox.ErrLetGo
	}
	a.cannotAdopt(f, err)
	a.Starter.End(f.Spec)
	a.Starter.Admission.Release(f.grant)
	a.leave(id, err)
	return err
}

// takeOver asks a sandbox, as long as it may take and nobody wants it to end. One that does not
// answer in time is ending from then on, though its process may take longer to die.
func (a *Agent) takeOver(ctx context.Context, f *former) (*startup.Started, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, adoptWithin,
		fmt.Errorf("it has not answered within %v", adoptWithin))
	defer cancel()
	if !a.mayEnd(f.entry, cancel) {
		return nil, errEndedFirst
	}
	late := context.AfterFunc(ctx, func() { a.cannotAdopt(f, context.Cause(ctx)) })
	defer late()
	return a.adopt(ctx, f)
}

var errEndedFirst = errors.New("somebody wanted its end before it was adopted")

// mayEnd gives callers the func that ends the sandbox while it is being adopted. It returns false
// if a caller has already ended the sandbox.
func (a *Agent) mayEnd(e *entry, cancel context.CancelFunc) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	e.cancel = cancel
	return e.state != ending
}

// cannotAdopt says why a sandbox ends, where nobody has wanted it to.
func (a *Agent) cannotAdopt(f *former, why error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if f.entry.state == ending || errors.Is(why, sandbox.ErrLetGo) {
		return
	}
	a.Log.Warn("ending a sandbox that cannot be adopted", "sandbox", f.Spec.ID, "err", why)
	f.entry.become(ending, why.Error())
	f.entry.failed = true
	a.changed.Broadcast()
}

func (a *Agent) adopt(ctx context.Context, f *former) (*startup.Started, error) {
	rec, lease := f.Record, f.grant.NIC
	has := rec.Spec.NIC.Device()
	switch {
	case f.Err != nil:
		return nil, f.Err
	case rec.Spec.NIC == nil && lease != nil:
		return nil, fmt.Errorf("its record has no NIC and the journal gives it %s",
			lease.NIC.Device())
	case rec.Spec.NIC != nil && lease == nil:
		return nil, fmt.Errorf("it has NIC %s, which the journal does not give it, "+
			"or cannot be read", has)
	case lease != nil && lease.Gone:
		return nil, fmt.Errorf("its NIC %s has gone", has)
	case lease != nil && has != lease.NIC.Device():
		return nil, fmt.Errorf("it has NIC %s and the journal gives it %s", has, lease.NIC.Device())
	case lease != nil && (lease.PID != rec.PID || lease.StartTicks != rec.StartTicks):
		return nil, fmt.Errorf("its record names process %d and the journal %d", rec.PID, lease.PID)
	}
	sb, err := a.Starter.Driver.Adopt(ctx, rec)
	if err != nil {
		return nil, err
	}
	program, err := a.Starter.Speaker.In(sb, rec.Spec)
	if err != nil { // it is of a later version
		sb.Close()
		return nil, err
	}
	return &startup.Started{
		Sandbox: sb, Runtime: program, Spec: rec.Spec, PID: rec.PID, Grant: f.grant,
		LetGo: a.hold(ctx, rec.Spec),
	}, nil
}

// hold keeps the images of a sandbox until letGo.
func (a *Agent) hold(ctx context.Context, spec sandbox.Spec) (letGo func()) {
	roots := []string{spec.Root}
	for _, s := range spec.Sidecars {
		roots = append(roots, s.Root)
	}
	var held []func()
	for _, root := range roots {
		one, err := a.Starter.Images.Hold(ctx, root)
		if err != nil { // the file is open in its VMM, so it outlives its name
			a.Log.Warn("an adopted sandbox's image is not held in the cache",
				"sandbox", spec.ID, "err", err)
		}
		if one != nil {
			held = append(held, one)
		}
	}
	return func() {
		for _, one := range held {
			one()
		}
	}
}
