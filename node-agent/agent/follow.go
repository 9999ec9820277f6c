package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/fastiov/fastiov/node-agent/vf"
)

// reclaimEvery is the time between checks of those holders of VFs that are not sandboxes. The agent
// does not learn of their end unless they return their VF themselves.
const reclaimEvery = 10 * time.Second

// Follow acts on what happens to the VFs until ctx ends: a sandbox that lost its VF ends, starts
// that wait are granted what has come back, and the VFs of dead holders are returned. Call it after
// Adopt, so that all sandboxes are known.
func (a *Agent) Follow(ctx context.Context) {
	reclaimed := make(chan struct{})
	go func() {
		defer close(reclaimed)
		a.reclaim(ctx)
	}()
	for news := range a.VFs.Watch(ctx) {
		for _, n := range news {
			a.Metrics.settled(n.Settled)
			if n.Lost != "" && n.Owner.Kind == vf.Sandbox {
				a.lost(n.Status)
			}
		}
		a.Starter.Admission.Serve()
	}
	<-reclaimed
}

// lost ends the sandbox whose VF failed or has gone; its release returns the VF. Calling it again
// does nothing.
func (a *Agent) lost(v vf.Status) {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := v.Owner.Name
	e := a.sandboxes[id]
	if e == nil || e.state == ending {
		return
	}
	e.failed = true
	a.Log.Warn("ending a sandbox that lost its VF", "sandbox", id, "vf", v.BDF, "why", v.Lost)
	a.end(id, fmt.Sprintf("it lost its VF %s: %s", v.BDF, v.Lost))
}

// reclaim returns VFs whose holders have died without returning them.
func (a *Agent) reclaim(ctx context.Context) {
	look := time.NewTicker(reclaimEvery)
	defer look.Stop()
	for {
		for _, lease := range a.VFs.Leases() {
			if lease.Owner.Dead() {
				a.Log.Warn("a VF is returned whose holder has died",
					"vf", lease.BDF, "holder", lease.Owner)
				a.VFs.Return(lease)
			}
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}
