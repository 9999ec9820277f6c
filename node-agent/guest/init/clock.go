package main

import (
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

func boottime() int64 {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_BOOTTIME, &now)
	return now.Nano()
}

const (
	agentStage = "agent"
	vfStage    = "5-vf-driver"
)

// A recorder reports stages and their steps to the host.
type recorder struct{ host *host }

// stage reports the span of a stage that ends now, and returns when that is.
func (r *recorder) stage(stage string, begin int64) (end int64) {
	end = boottime()
	r.host.send(wire.Up{Event: &wire.Event{Stage: stage, Begin: begin, End: end}})
	return end
}

// step does a part of the agent stage and reports it.
func (r *recorder) step(name string, do func() error) error {
	return r.stepOf(agentStage, name, do)
}

func (r *recorder) stepOf(stage, name string, do func() error) error {
	begin := boottime()
	err := do()
	r.host.send(wire.Up{Event: &wire.Event{Stage: stage, Step: name, Begin: begin,
		End: boottime()}})
	return err
}
