package startup

import (
	"context"
	"fmt"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// A phase is one step of a start: its work, its deadline and its undo. undo is called for every
// phase that was entered, also one that failed half-way. It does nothing if there is nothing to
// undo.
type phase struct {
	name     string
	stage    timeline.Stage // recorded around do; empty: do records its own
	deadline time.Duration
	do       func(context.Context) error
	undo     func()
}

// run walks the phases. On failure it calls failed, undoes everything in reverse, and returns the
// error.
func run(ctx context.Context, tl *timeline.Timeline, phases []phase, failed func(error)) error {
	for i, p := range phases {
		err := p.run(ctx, tl)
		if err == nil {
			continue
		}
		err = fmt.Errorf("%s: %w", p.name, err)
		failed(err)
		undo(phases[:i+1])
		return err
	}
	return nil
}

func (p phase) run(ctx context.Context, tl *timeline.Timeline) error {
	if p.stage != "" {
		defer tl.Begin(p.stage)()
	}
	if p.deadline > 0 {
		late := fmt.Errorf("not done within %s", p.deadline)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, p.deadline, late)
		defer cancel()
	}
	if err := p.do(ctx); err != nil {
		if ctx.Err() != nil { // the cause is the news, not what it broke
			return context.Cause(ctx)
		}
		return err
	}
	return nil
}

func undo(phases []phase) {
	for i := len(phases) - 1; i >= 0; i-- {
		if phases[i].undo != nil {
			phases[i].undo()
		}
	}
}
