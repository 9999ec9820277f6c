package guest

import (
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// A Step is a part of a stage, for a reader who wants to know what the stage consists of.
type Step struct {
	timeline.Span
	Name string
}

// Spans returns the guest's stages as far as it has reported them. guest-boot begins with the guest
// kernel's clock. The driver adds firmware and unpacking, which come before that, since it knows
// when the guest began to run.
func (c *Conn) Spans() []timeline.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.clock.known {
		return nil
	}
	now := time.Now()
	spans := []timeline.Span{{
		Stage: timeline.GuestBoot, Error: c.clock.err,
		Begin: c.hold(0, now), End: c.hold(c.hello.Boot, now),
	}}
	for _, e := range c.events {
		if e.Step == "" {
			spans = append(spans, c.span(e))
		}
	}
	return spans
}

// Gate tells how the guest's gate was opened.
func (c *Conn) Gate() (g timeline.Gate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.Idle = c.idle; c.openedAt.IsZero() || !c.clock.known {
		return g
	}
	g.Open, g.Opened = true, c.hold(c.gate.Open, c.openedAt)
	g.Held, g.Dropped = max(c.gate.Held, 0), max(c.gate.Dropped, 0)
	if c.gate.First > 0 {
		g.First = c.hold(c.gate.First, g.Opened)
	}
	return g
}

// Steps returns the parts of the stages in Spans.
func (c *Conn) Steps() []Step {
	c.mu.Lock()
	defer c.mu.Unlock()
	var steps []Step
	for _, e := range c.events {
		if e.Step != "" && c.clock.known {
			steps = append(steps, Step{c.span(e), e.Step})
		}
	}
	return steps
}

func (c *Conn) span(e heard) timeline.Span {
	return timeline.Span{Stage: timeline.Stage(e.Stage), Begin: c.hold(e.Begin, e.at),
		End: c.hold(e.End, e.at), Error: c.clock.err}
}

// hold maps a guest's time to the host's clock and holds it between when the guest was expected and
// when it was heard.
func (c *Conn) hold(boot int64, heard time.Time) time.Time {
	t := c.clock.host(boot)
	if t.Before(c.since) {
		return c.since
	}
	if t.After(heard) {
		return heard
	}
	return t
}
