package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// An executor is a sandbox that runs a second program so.
type executor struct {
	sandbox.Sandbox
	exec func(ctx context.Context) (int, error)
}

func (e executor) Exec(ctx context.Context, _ []string) (int, error) { return e.exec(ctx) }

func TestExec(t *testing.T) {
	a, _, _ := newAgent(t)
	within := time.Minute
	run := func(id string, command ...string) (*api.ExecReply, codes.Code) {
		reply, err := a.Exec(t.Context(), &api.ExecRequest{Id: id, Command: command,
			TimeoutMs: uint32(within.Milliseconds())})
		return reply, status.Code(err)
	}
	if _, err := start(t, a, "x"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id      string
		command []string
		want    codes.Code
	}{{"y", []string{"true"}, codes.NotFound}, {"x", nil, codes.InvalidArgument},
		{"x", []string{"true"}, codes.Unimplemented}} {
		if _, got := run(c.id, c.command...); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	st, err := a.find(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	put := func(st *startup.Started) { // who watches the sandbox reads the former
		a.mu.Lock()
		defer a.mu.Unlock()
		a.sandboxes["x"].st = st
	}
	own := st.Sandbox
	become := func(sb sandbox.Sandbox) { put(&startup.Started{Sandbox: sb, Spec: st.Spec}) }
	defer func() {
		put(st)
		if _, err := a.Stop(t.Context(), &api.StopRequest{Id: "x"}); err != nil {
			t.Error(err)
		}
	}()
	become(executor{own, func(context.Context) (int, error) { return 3, nil }})
	if reply, code := run("x", "false"); code != codes.OK || reply.Status != 3 || reply.Late {
		t.Errorf("%+v, %v", reply, code)
	}
	become(executor{own, func(ctx context.Context) (int, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	}})
	within = 20 * time.Millisecond
	if reply, code := run("x", "sleep"); code != codes.OK || !reply.Late {
		t.Errorf("%+v, %v", reply, code)
	}
	within = time.Minute
	become(executor{own, func(context.Context) (int, error) {
		return 0, sandbox.ErrBusy
	}})
	if _, code := run("x", "sleep"); code != codes.ResourceExhausted {
		t.Error(code)
	}
	become(executor{own, func(context.Context) (int, error) {
		return 0, errors.New("no such program")
	}})
	if _, code := run("x", "nothing"); code != codes.Aborted {
		t.Error(code)
	}
}
