package containerd

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
)

// Exec implements sandbox.Executor.
func (b *box) Exec(ctx context.Context, command []string) (status int, err error) {
	if cause := b.Cause(); cause != nil {
		return 0, fmt.Errorf("the sandbox has ended: %w", cause)
	}
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
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
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
