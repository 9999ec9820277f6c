package qemu

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

// A paused guest does not know that it was paused. Its monotonic clock may have counted on (the
// CPU's own counter does) or stood still (the paravirtual clock does). Its time of day may
// therefore be behind by all of the pause. So after every resume the guest's process 1 is told the
// time and sets it, and a function may run only after it says so. The VF stays with the guest.
// Packets that arrive for it meanwhile fill its rings and are then dropped.

// answersWithin is a VMM's and its guest's; one that has not answered by then is not going to.
const answersWithin = 10 * time.Second

// Pause implements sandbox.Sandbox. Connections into the guest are closed: it could not keep its
// end of them. A guest whose VF is coming up is not paused: a VF whose time to come up has passed
// meanwhile would end it. Nor does Pause wait for that: who resumes a sandbox waits for its Pause.
func (v *vm) Pause(ctx context.Context) error {
	if v.comingUp() {
		return sandbox.ErrComingUp
	}
	return v.turn(ctx, v.pause)
}

// comingUp says whether the guest's VF comes up beside its program.
func (v *vm) comingUp() bool {
	if !v.late.gated || v.Cause() != nil { // turn tells of its end
		return false
	}
	select {
	case <-v.conn.Opened():
		return false
	default:
		return true
	}
}

func (v *vm) pause(context.Context) error {
	v.HangUp()
	state, err := v.state()
	if err != nil || state == "paused" {
		return err
	}
	v.expectStop(true)
	if err := v.qmp.ask("stop", nil); err != nil {
		v.expectStop(false)
		return err
	}
	return nil
}

// Resume implements sandbox.Sandbox.
func (v *vm) Resume(ctx context.Context) error { return v.turn(ctx, v.resume) }

func (v *vm) resume(ctx context.Context) error {
	state, err := v.state()
	if err != nil || state == "running" {
		return err
	}
	if err := v.qmp.ask("cont", nil); err != nil {
		return err
	}
	return v.conn.Wake(ctx)
}

// turn does one pause or resume at a time, each to its end: a caller that gives up must not leave a
// guest that runs and has the wrong time. A VMM or a guest that does not answer ends the sandbox.
// That closes the connections, which releases all callers that wait for an answer.
func (v *vm) turn(ctx context.Context, do func(context.Context) error) error {
	select {
	case v.turning <- struct{}{}:
		defer func() { <-v.turning }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answersWithin)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		v.End(fmt.Errorf("its VMM or its guest has not answered within %v", answersWithin))
	})()
	return do(ctx)
}

func (v *vm) expectStop(yes bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.pausing = yes
}

// state is running or paused; in any other the guest cannot go on.
func (v *vm) state() (string, error) {
	if v.Cause() != nil {
		return "", errors.New("the sandbox has ended")
	}
	var status struct{ Status string }
	if err := v.qmp.ask("query-status", &status); err != nil {
		return "", err
	}
	if status.Status != "running" && status.Status != "paused" {
		return "", fmt.Errorf("its VMM does not run the guest (%.40s)",
			strings.Map(printable, status.Status))
	}
	return status.Status, nil
}
