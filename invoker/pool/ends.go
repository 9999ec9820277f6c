package pool

import (
	"context"
	"errors"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
)

// follow takes in the ends of a node's sandboxes until the pool closes. A node of a former version
// does not tell them until it is upgraded: there a sandbox is found to have ended when a job is
// sent to it.
func (p *Pool) follow(n *node) {
	for {
		_ = p.hear(n) // what was missed is found when the node is heard again
		select {
		case <-p.ctx.Done():
			return
		case <-time.After(hurry):
		}
	}
}

// hear takes in the ends that a node tells, and those that it could not tell before.
func (p *Pool) hear(n *node) error {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	ends, err := n.to.Wait(ctx, &api.WaitRequest{})
	if err == nil {
		err = api.Begun(ends)
	}
	if err == nil {
		err = p.findEnded(ctx, n)
	}
	for err == nil {
		var end *api.Ended
		if end, err = ends.Recv(); err == nil {
			p.happen(func(s *state, now time.Time) {
				var why error
				if end.Failed {
					why = errors.New(end.Reason)
				}
				s.ended(n, end.Id, why, now)
			})
		}
	}
	return err
}

// findEnded takes in that sandboxes are gone which the node has no more.
func (p *Pool) findEnded(ctx context.Context, n *node) error {
	had := p.startedOn(n)
	if len(had) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	reply, err := n.to.Status(ctx, &api.StatusRequest{})
	if err != nil {
		return err
	}
	for _, sandbox := range reply.Sandboxes {
		delete(had, sandbox.Id)
	}
	p.happen(func(s *state, now time.Time) {
		for id := range had {
			s.ended(n, id, errors.New("its node has it no more"), now)
		}
	})
	return nil
}

// startedOn returns the ids of the sandboxes on a node whose start is over.
func (p *Pool) startedOn(n *node) map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := map[string]bool{}
	p.state.eachBox(n, func(b *box) {
		if b.phase != starting {
			ids[b.id] = true
		}
	})
	return ids
}

// ended takes in that a sandbox is gone, and why, if nobody wanted that. Its jobs learn it from
// their calls, and who starts it from the start.
func (s *state) ended(n *node, id string, why error, now time.Time) {
	switch b := n.boxes[id]; {
	case b == nil:
	case b.phase == starting:
		b.ended, b.failed = true, why // the answer to the start is on its way
	default:
		s.crashed(b, why, now)
		s.drop(b, now)
	}
}
