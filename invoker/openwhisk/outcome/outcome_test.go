package outcome

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/message"
	"github.com/fastiov/fastiov/invoker/openwhisk/runtime"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
)

// The node's clock is set back by an hour, before it starts the sandbox, before it runs the action,
// or while it does either. Nothing took less than no time.
func TestNothingTakesLessThanNoTime(t *testing.T) {
	const hour = int64(time.Hour)
	accepted := time.Now()
	now := accepted.UnixNano()
	for name, c := range map[string]struct{ initBegin, initEnd, runBegin, runEnd int64 }{
		"before all":  {now - hour, now - hour + 10, now - hour + 20, now - hour + 30},
		"at the init": {now + 10, now - hour, now - hour + 10, now - hour + 20},
		"between":     {now + 10, now + 20, now - hour, now - hour + 10},
		"at the run":  {now + 10, now + 20, now + 30, now - hour},
	} {
		for _, cold := range []bool{true, false} {
			result := runtime.Result{
				Placement: pool.Placement{Cold: cold, Placed: accepted.Add(time.Microsecond)},
				Run:       &api.RunReply{BeginNs: c.runBegin, EndNs: c.runEnd},
				Answer:    &activation.Response{},
			}
			if cold {
				result.Start = &api.StartReply{Spans: []*api.Span{
					{Stage: "app-init", BeginNs: c.initBegin, EndNs: c.initEnd},
				}}
			}
			r := &activation.Record{}
			Write(r, accepted, accepted, result, nil)
			if r.Duration() < 0 || r.Wait < 0 || r.Init < 0 || r.End.Before(r.Start) {
				t.Errorf("%s: %v, waited %v, init %v, from %v to %v",
					name, r.Duration(), r.Wait, r.Init, r.Start, r.End)
			}
			if took := message.NewRecord(r, &message.Activation{}).Duration; took < 0 {
				t.Errorf("%s: %d ms for the cluster", name, took)
			}
			if !cold {
				continue
			}
			if r.Cold.EndToEnd < 0 || r.Cold.Coverage < 0 || r.Cold.Coverage > 1 {
				t.Errorf("%s: %v ms, coverage %v", name, r.Cold.EndToEnd, r.Cold.Coverage)
			}
			for stage, spent := range r.Cold.Stages {
				if spent < 0 {
					t.Errorf("%s: %s took %v ms", name, stage, spent)
				}
			}
		}
	}
}

func TestWhoseFaultAFailedStartIs(t *testing.T) {
	for code, want := range map[codes.Code]activation.Status{
		codes.InvalidArgument: activation.DeveloperError,
		codes.Aborted:         activation.InternalError,
		codes.Internal:        activation.InternalError,
	} {
		err := &pool.StartError{Err: status.Error(code, "why")}
		got, timedOut := response(nil, err, activation.Limits{})
		if got.Status != want || timedOut {
			t.Errorf("%s: %v (timed out: %t), want %v", code, got.Status, timedOut, want)
		}
	}
}

func TestWhoseFaultAFailedRunIs(t *testing.T) {
	for code, want := range map[codes.Code]activation.Status{
		codes.Unavailable: activation.InternalError, // of its NIC
		codes.Internal:    activation.DeveloperError,
	} {
		err := &runtime.RunError{Err: status.Error(code, "why")}
		if got, _ := response(nil, err, activation.Limits{}); got.Status != want {
			t.Errorf("%s: %v, want %v", code, got.Status, want)
		}
	}
}
