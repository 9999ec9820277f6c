package pool

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A sandbox that rests is there, and gets no demand until it rests no more.
func TestASandboxRests(t *testing.T) {
	in(t, Config{KeepAlive: time.Minute}, vfs(2), func(t *testing.T, p *Pool, n *fakeNode) {
		first := hold(t, p, work("a").Demand)
		id := first.Sandbox
		first.Release(true)
		var rested []bool
		p.Tell(func(s Sandbox) {
			if s.ID == id {
				rested = append(rested, s.Rests)
			}
		})
		p.Rest(id, true)
		if n := p.Ready(work("a").Demand); n != 0 {
			t.Errorf("%d ready while the only one rests", n)
		}
		other := hold(t, p, work("a").Demand)
		if other.Sandbox == id {
			t.Error("a resting sandbox was leased")
		}
		p.Rest(id, false)
		if n := p.Ready(work("a").Demand); n != 2 {
			t.Errorf("%d ready, want 2", n)
		}
		if again := hold(t, p, work("a").Demand); again.Sandbox != id {
			t.Error("one that rests no more was not leased")
		} else {
			again.Release(true)
		}
		other.Release(true)
		if len(rested) < 3 || rested[0] || !rested[1] || rested[2] {
			t.Errorf("told %v", rested)
		}
	})
}

// One that fails ends with what is under way in it, and those who follow are told why.
func TestASandboxFails(t *testing.T) {
	in(t, Config{KeepAlive: time.Minute}, vfs(2), func(t *testing.T, p *Pool, n *fakeNode) {
		l := hold(t, p, work("a").Demand)
		var why error
		p.Tell(func(s Sandbox) {
			if s.Gone {
				why = s.Why
			}
		})
		dead := errors.New("it does not answer")
		p.Fail(l.Sandbox, dead)
		p.Fail("nobody", dead)
		p.Rest("nobody", true)
		synctest.Wait()
		if !errors.Is(why, dead) || p.Ready(work("a").Demand) != 0 {
			t.Errorf("told %v, and %d ready", why, p.Ready(work("a").Demand))
		}
		l.Release(true)
	})
}
