package containerd

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// turn returns when a second program may be made. Tenants say how often that is, and the runtime
// that makes one takes the CPU before all sandboxes, as a shim does: so it has a quarter of them.
func (d *Driver) turn(ctx context.Context) (over func(), err error) {
	select {
	case d.turns <- struct{}{}:
		return sync.OnceFunc(func() { <-d.turns }), nil
	case <-ctx.Done():
		return nil, sandbox.ErrBusy
	}
}

// longestTurn bounds a turn: a program whose sandbox has little CPU may take long to come up.
const longestTurn = time.Second

// Exec implements sandbox.Executor.
func (b *box) Exec(ctx context.Context, command []string) (status int, err error) {
	if cause := b.Cause(); cause != nil {
		return 0, fmt.Errorf("the sandbox has ended: %w", cause)
	}
	asked := time.Now()
	made, err := b.driver.turn(ctx)
	if err != nil {
		return 0, err
	}
	defer made()
	defer time.AfterFunc(longestTurn, made).Stop()
	begun := time.Now()
	defer func() {
		late, has := ctx.Deadline()
		if err != nil && ctx.Err() != nil && has && begun.Sub(asked) > late.Sub(begun) {
			err = sandbox.ErrBusy // others have had most of its time
		}
	}()
	ctx = b.driver.named(ctx)
	own, err := b.container.Spec(ctx)
	if err != nil {
		return 0, err
	}
	as := *own.Process
	as.Args = command
	making, cancel := b.driver.making(ctx)
	defer cancel()
	p, err := b.task.Exec(making, rand.Text(), &as, cio.NullIO)
	if err != nil {
		return 0, err
	}
	defer func() {
		made()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.driver.endWithin)
		defer cancel()
		_, _ = p.Delete(ending, client.WithProcessKill)
	}()
	exited, err := p.Wait(ctx)
	if err == nil {
		err = p.Start(making)
	}
	if err != nil {
		return 0, err
	}
	made()
	select {
	case exit := <-exited:
		code, _, err := exit.Result()
		return int(code), err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-b.Context().Done():
		return 0, fmt.Errorf("the sandbox has ended: %w", b.Cause())
	}
}
