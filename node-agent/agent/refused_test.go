package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/tail"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// endless is a driver whose runtimes do not end their logs.
type endless struct{ *driver }

type endlessBox struct{ *box }

func (d endless) Start(
	ctx context.Context, spec sandbox.Spec, tl *timeline.Timeline, owned func(sandbox.Record) error,
) (sandbox.Sandbox, error) {
	b, err := d.driver.Start(ctx, spec, tl, owned)
	if err != nil {
		return nil, err
	}
	return endlessBox{b.(*box)}, nil
}

func (b endlessBox) Logs() *tail.Log {
	l := tail.New()
	l.Add(wire.LogLine{Stream: "stderr", Text: "it does not parse"})
	return l
}

// TestARefusedInitIsToldSoon: also of a runtime that ends no logs, cold and as a stem cell.
func TestARefusedInitIsToldSoon(t *testing.T) {
	type start = func(context.Context, *testing.T, *Agent) (*api.StartReply, error)
	for name, init := range map[string]start{
		"cold": func(ctx context.Context, _ *testing.T, a *Agent) (*api.StartReply, error) {
			return a.Start(ctx, &api.StartRequest{Id: "x", MemoryMib: 128, Init: []byte("{}")})
		},
		"stem cell": func(ctx context.Context, t *testing.T, a *Agent) (*api.StartReply, error) {
			startStem(t, a)
			return a.Init(ctx, &api.InitRequest{Id: "x", Init: []byte("{}")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, d, v := newAgent(t)
				d.initial, a.Starter.Driver = 502, endless{d}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				begin := time.Now()
				reply, err := init(ctx, t, a)
				if err != nil || reply.InitStatus != 502 || len(reply.Logs) != 2 {
					t.Errorf("%+v, %v", reply, err)
				}
				if took := time.Since(begin); took > 2*time.Second {
					t.Errorf("it was told after %s", took)
				}
				if len(v.returned) != 1 {
					t.Error("it holds its VF")
				}
			})
		})
	}
}
