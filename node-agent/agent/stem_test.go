package agent

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

func startStem(t *testing.T, a *Agent) {
	t.Helper()
	if reply, err := a.Start(t.Context(), &api.StartRequest{Id: "x", MemoryMib: 128}); err != nil ||
		reply.InitStatus != 200 {
		t.Fatalf("%+v, %v", reply, err)
	}
}

func TestAStemCellBecomesAFunction(t *testing.T) {
	a, d, _ := newAgent(t)
	startStem(t, a)
	reply, err := a.Init(t.Context(), &api.InitRequest{Id: "x", Init: []byte("{}")})
	if err != nil || reply.InitStatus != 200 || reply.Nic != "0000:01:10.0" ||
		len(reply.Spans) != 1 || reply.Spans[0].Stage != "app-init" {
		t.Errorf("%+v, %v", reply, err)
	}
	if run, err := a.Run(t.Context(), &api.RunRequest{Id: "x"}); err != nil || run.Status != 200 {
		t.Errorf("%+v, %v", run, err)
	}
	d.boxes["x"].Close()
	waitGone(a)
}

func TestAStemCellThatTheFunctionBreaksIsStopped(t *testing.T) {
	a, d, v := newAgent(t)
	d.initial = 502
	startStem(t, a)
	reply, err := a.Init(t.Context(), &api.InitRequest{Id: "x", Init: []byte("{}")})
	if err != nil || reply.InitStatus != 502 || len(reply.Logs) != 1 {
		t.Fatalf("%+v, %v", reply, err)
	}
	if len(v.returned) != 1 {
		t.Error("it still holds its VF")
	}
	if _, err := a.Init(t.Context(),
		&api.InitRequest{Id: "x"}); status.Code(err) != codes.NotFound {
		t.Errorf("a sandbox that has gone: %v", err)
	}
}

func TestPauseAndResume(t *testing.T) {
	a, d, _ := newAgent(t)
	if _, err := a.Pause(t.Context(),
		&api.PauseRequest{Id: "x"}); status.Code(err) != codes.NotFound {
		t.Errorf("nothing was paused: %v", err)
	}
	startStem(t, a)
	state := func() string {
		st, _ := a.Status(t.Context(), &api.StatusRequest{})
		return st.Sandboxes[0].State
	}
	d.boxes["x"].noPause = sandbox.ErrComingUp
	if _, err := a.Pause(t.Context(),
		&api.PauseRequest{Id: "x"}); status.Code(err) != codes.FailedPrecondition ||
		state() != "ready" {
		t.Errorf("before its NIC is up: %s, %v", state(), err)
	}
	d.boxes["x"].noPause = nil
	for range 2 {
		if _, err := a.Pause(t.Context(), &api.PauseRequest{Id: "x"}); err != nil ||
			state() != "paused" {
			t.Errorf("%s, %v", state(), err)
		}
	}
	if _, err := a.Resume(t.Context(), &api.ResumeRequest{Id: "x"}); err != nil ||
		state() != "ready" {
		t.Errorf("%s, %v", state(), err)
	}
	if brief, _ := a.Status(t.Context(),
		&api.StatusRequest{Brief: true}); len(brief.Sandboxes) != 0 ||
		brief.MemoryReservedMib != 128 {
		t.Errorf("%+v", brief)
	}
	d.boxes["x"].Close()
	waitGone(a)
}

// A caller may try elsewhere what a runtime cannot have seen, and nothing else.
func TestARuntimeThatWasNotReached(t *testing.T) {
	for want, reached := range map[codes.Code]bool{codes.Aborted: false, codes.Internal: true} {
		a, d, _ := newAgent(t)
		startStem(t, a)
		if d.boxes["x"].hangsUp = reached; !reached {
			d.boxes["x"].broken = errors.New("connection refused")
		}
		if _, err := a.Run(t.Context(), &api.RunRequest{Id: "x"}); status.Code(err) != want {
			t.Errorf("%v, want %v", err, want)
		}
		d.boxes["x"].Close()
		waitGone(a)
	}
}

// That a NIC fails under a call is not the fault of what was called.
func TestANICThatFailsIsNotTheRuntimesFault(t *testing.T) {
	for cause, want := range map[error]codes.Code{
		errors.New("killed"):          codes.Internal,
		&sandbox.NICFault{Why: "AER"}: codes.Unavailable,
		fmt.Errorf("%w", wire.ErrNIC): codes.Unavailable,
	} {
		a, d, _ := newAgent(t)
		startStem(t, a)
		d.boxes["x"].dies = cause
		if _, err := a.Run(t.Context(), &api.RunRequest{Id: "x"}); status.Code(err) != want {
			t.Errorf("%v: %v, want %v", cause, err, want)
		}
		waitGone(a)
	}
}
