package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// adoptWithin bounds how long a sandbox may take to answer a new agent.
const adoptWithin = 15 * time.Second

// Adopt settles what a former agent left: every sandbox whose record, VF lease and own answer agree is
// taken over, every other one is ended by its cgroup, and only then is its VF returned. It runs before
// the node API is served. Sandboxes are asked side by side, so that a silent one delays no other.
func (a *Agent) Adopt(ctx context.Context) (adopted, ended int) {
	var leases []vf.Lease
	if a.VFs != nil {
		a.expectLosses(true)
		defer a.expectLosses(false)
		leases = a.VFs.Found()
	}
	kept := map[string]bool{}
	var mu sync.Mutex // guards kept and ended
	var asked sync.WaitGroup
	for _, rec := range a.Starter.Records() {
		asked.Go(func() {
			id := rec.Spec.ID
			err := a.takeOver(ctx, rec, leaseOf(leases, id))
			if err != nil {
				a.Log.Warn("ending a sandbox that cannot be adopted", "sandbox", id, "err", err)
				a.Starter.End(rec.Spec)
			}
			mu.Lock()
			defer mu.Unlock()
			if kept[id] = err == nil; err != nil {
				ended++
			}
		})
	}
	asked.Wait()
	for _, lease := range leases {
		if id := lease.Owner.Sandbox; !kept[id] {
			if id != "" { // the journal entry could be read
				a.Starter.End(sandbox.Spec{ID: id, Dir: a.Starter.Dir(id)})
			}
			a.VFs.Return(lease)
		}
	}
	return len(kept) - ended, ended
}

// expectLosses has Lost remember the sandboxes that are not known yet.
func (a *Agent) expectLosses(begin bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lost = nil
	if begin {
		a.lost = map[string]bool{}
	}
}

// takeOver makes a sandbox of a former agent one of this agent's.
func (a *Agent) takeOver(ctx context.Context, rec startup.Found, lease *vf.Lease) error {
	ctx, cancel := context.WithTimeoutCause(ctx, adoptWithin,
		fmt.Errorf("it has not answered within %v", adoptWithin))
	defer cancel()
	st, err := a.adopt(ctx, rec, lease)
	if err != nil {
		return err
	}
	id := rec.Spec.ID
	a.Log.Info("adopted", "sandbox", id, "pid", rec.PID)
	e := &entry{started: time.Now(), adopted: true, cancel: func() {}}
	a.mu.Lock()
	a.sandboxes[id] = e
	e.ending = a.lost[id]
	a.mu.Unlock()
	a.ready(id, e, st)
	return nil
}

func leaseOf(leases []vf.Lease, id string) *vf.Lease {
	for _, l := range leases {
		if l.Owner.Sandbox == id {
			return &l
		}
	}
	return nil
}

func (a *Agent) adopt(
	ctx context.Context, rec startup.Found, lease *vf.Lease,
) (*startup.Started, error) {
	switch {
	case rec.Err != nil:
		return nil, rec.Err
	case (rec.Spec.VF == nil) != (lease == nil):
		return nil, fmt.Errorf("its record and the VF journal disagree on whether it has a VF")
	case lease != nil && lease.Gone:
		return nil, fmt.Errorf("its VF %s has gone", lease.BDF)
	case lease != nil && rec.Spec.VF.BDF != lease.BDF:
		return nil, fmt.Errorf("it has VF %s and the journal gives it %s", rec.Spec.VF.BDF, lease.BDF)
	case lease != nil && (lease.Owner.PID != rec.PID || lease.Owner.StartTicks != rec.StartTicks):
		return nil, fmt.Errorf("its record names process %d and the VF journal %d", rec.PID, lease.Owner.PID)
	}
	sb, err := a.Starter.Driver.Adopt(ctx, rec.Record)
	if err != nil {
		return nil, err
	}
	letGo, err := a.Starter.Images.Hold(ctx, rec.Spec.Root)
	if err != nil { // the file is open in its VMM, so it outlives its name
		a.Log.Warn("an adopted sandbox's image is not held in the cache", "sandbox", rec.Spec.ID, "err", err)
	}
	grant := &startup.Grant{VF: lease, MemoryMiB: rec.Spec.MemoryMiB + a.Starter.OverheadMiB}
	a.Starter.Admission.Adopt(grant)
	return &startup.Started{Sandbox: sb, Spec: rec.Spec, PID: rec.PID, Grant: grant, LetGo: letGo}, nil
}
