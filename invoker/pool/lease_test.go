package pool

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
)

// hold acquires a lease and returns once it is held.
func hold(t *testing.T, p *Pool, d Demand) *Lease {
	t.Helper()
	held := make(chan *Lease, 1)
	p.Acquire(d, func(l *Lease, err error) {
		if err != nil {
			t.Error(err)
		}
		held <- l
	})
	return <-held
}

// webSocket is the demand of one who keeps its lease as long as the pool lets it.
func webSocket(namespace, group string) Demand {
	d := work(group).Demand
	d.Namespace, d.Endless = namespace, true
	return d
}

// heedful gives a lease back when its Context ends, and says why that was and when.
func heedful(l *Lease) (ended <-chan error) {
	over := make(chan error, 1)
	go func() {
		<-l.Context().Done()
		cause := context.Cause(l.Context())
		l.Release(false)
		over <- cause
	}()
	return over
}

// A lease that is held for hours is neither paused nor expired, and its group's next demand is met
// beside it; once it is given back, its sandbox idles like any other.
func TestALeaseMayLastForHours(t *testing.T) {
	cfg := Config{KeepAlive: time.Minute, PauseAfter: 10 * time.Second}
	in(t, cfg, vfs(2), func(t *testing.T, p *Pool, n *fakeNode) {
		l := hold(t, p, webSocket("x", "socket"))
		time.Sleep(6 * time.Hour)
		if l.Context().Err() != nil || len(n.paused) > 0 {
			t.Errorf("after six hours: %v, %d paused", context.Cause(l.Context()), len(n.paused))
		}
		if live, stopped := n.count(); live != 1 || stopped != 0 {
			t.Errorf("%d live, %d stopped", live, stopped)
		}
		if other := do(p, work("a")); other.err != nil {
			t.Error(other.err)
		}
		l.Release(true)
		again := hold(t, p, webSocket("x", "socket"))
		if again.How != Warm || again.Sandbox != l.Sandbox {
			t.Errorf("%+v after %+v", again.Placement, l.Placement)
		}
		again.Release(true)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if live, _ := n.count(); live != 0 {
			t.Error("it idles for longer than its keep-alive")
		}
	})
}

// Where WebSockets have every place, a job of another namespace waits for patience: then one of
// them is told to end, the longest held, and no more.
func TestEndlessLeasesStarveNobody(t *testing.T) {
	in(t, Config{}, vfs(3), func(t *testing.T, p *Pool, n *fakeNode) {
		var ends []<-chan error
		for range 3 {
			ends = append(ends, heedful(hold(t, p, webSocket("x", "socket"))))
			time.Sleep(time.Second)
		}
		time.Sleep(time.Hour)
		begin := time.Now()
		other := work("a")
		other.Namespace = "y"
		if end := do(p, other); end.err != nil {
			t.Fatal(end.err)
		}
		if took := time.Since(begin); took != time.Second+startTime+runTime {
			t.Errorf("the other took %s", took)
		}
		select {
		case cause := <-ends[0]:
			if cause != ErrClaimed {
				t.Errorf("it was told %v", cause)
			}
		default:
			t.Error("the longest held was not told to end")
		}
		if len(ends[1])+len(ends[2]) > 0 {
			t.Error("more than one was told to end")
		}
	})
}

// A pool that closes ends what is held, whether endless or not, and waits for no more than that.
func TestCloseEndsLeases(t *testing.T) {
	in(t, Config{}, vfs(2), func(t *testing.T, p *Pool, n *fakeNode) {
		socket := heedful(hold(t, p, webSocket("x", "socket")))
		run := heedful(hold(t, p, work("a").Demand))
		time.Sleep(time.Hour)
		begin := time.Now()
		p.Close()
		if took := time.Since(begin); took > 0 {
			t.Errorf("closing took %s", took)
		}
		if a, b := <-socket, <-run; a != context.Canceled || b != context.Canceled {
			t.Errorf("told %v and %v", a, b)
		}
	})
}

// A node that is given up ends its leases, those that are endless too.
func TestALostNodeEndsItsLeases(t *testing.T) {
	cfg, one := Config{LostAfter: 10 * time.Second}, having(1)
	among(t, cfg, one, func(t *testing.T, p *Pool, nodes []*fakeNode) {
		ended := heedful(hold(t, p, webSocket("x", "socket")))
		nodes[0].setDeaf(true)
		begin := time.Now()
		if cause := <-ended; cause != context.Canceled || time.Since(begin) > 30*time.Second {
			t.Errorf("told %v after %s", cause, time.Since(begin))
		}
	})
}

// A call that reached nothing may be retried in another sandbox; one that may have reached its
// runtime, or was sent to a sandbox made for it, is not.
func TestWhatMayBeRetried(t *testing.T) {
	for _, c := range []struct {
		code codes.Code
		warm bool
		want bool
	}{
		{codes.NotFound, true, true}, {codes.Aborted, true, true},
		{codes.NotFound, false, false}, {codes.Aborted, false, false},
		{codes.Unavailable, true, false}, {codes.Internal, true, false},
		{codes.Canceled, true, false}, {codes.DeadlineExceeded, true, false},
	} {
		in(t, Config{}, vfs(2), func(t *testing.T, p *Pool, n *fakeNode) {
			if c.warm {
				do(p, work("a"))
			}
			tries, over := 0, make(chan bool)
			p.Acquire(work("a").Demand, func(l *Lease, err error) {
				if tries++; err == nil && l.Retry(status.Error(c.code, "it is not there")) {
					return
				}
				l.Release(true)
				over <- true
			})
			<-over
			if retried := tries > 1; retried != c.want {
				t.Errorf("%s, warm %t: used %d times", c.code, c.warm, tries)
			}
		})
	}
}

// A retried demand keeps its place: it comes before those of its group that came
// later, however many wait.
func TestARetriedDemandKeepsItsPlace(t *testing.T) {
	in(t, Config{Queue: 1}, vfs(1), func(t *testing.T, p *Pool, n *fakeNode) {
		do(p, work("a"))
		first, used := make(chan *Lease, 1), make(chan string, 2)
		again := false
		p.Acquire(work("a").Demand, func(l *Lease, err error) {
			if again {
				used <- "retried"
				l.Release(false)
				return
			}
			again = true
			first <- l
		})
		l := <-first
		p.Acquire(work("a").Demand, func(l *Lease, err error) {
			used <- "later"
			l.Release(false)
		})
		if !l.Retry(status.Error(codes.NotFound, "it ended")) {
			t.Fatal("it is not retried")
		}
		if one, two := <-used, <-used; one != "retried" || two != "later" {
			t.Errorf("%s before %s", one, two)
		}
	})
}

// What is ready, the demand says: its own answer decides, and no status that the pool knows.
func TestADemandSaysWhatIsReady(t *testing.T) {
	in(t, Config{}, vfs(1), func(t *testing.T, p *Pool, n *fakeNode) {
		n.start = func(_ context.Context, in *api.StartRequest) (*api.StartReply, error) {
			return &api.StartReply{Id: in.Id, InitStatus: 404}, nil
		}
		d := work("a").Demand
		d.Ready = nil
		hold(t, p, d).Release(true)

		no := errors.New("not yet")
		d.Group, d.Ready = "b", func(*api.StartReply) error { return no }
		over := make(chan error)
		p.Acquire(d, func(l *Lease, err error) {
			if l.Start.GetInitStatus() != 404 || !l.Cold {
				t.Errorf("%+v", l.Placement)
			}
			over <- err
		})
		if err := <-over; err != no {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		if live, _ := n.count(); live != 0 {
			t.Error("a sandbox that is not ready lives on")
		}
	})
}

func TestALeaseIsGivenBackOnce(t *testing.T) {
	in(t, Config{}, vfs(1), func(t *testing.T, p *Pool, n *fakeNode) {
		l := hold(t, p, work("a").Demand)
		l.Release(true)
		defer func() {
			if recover() == nil {
				t.Error("given back twice")
			}
		}()
		l.Release(true)
	})
}

// A sandbox that is gone from its node under its only job holds starts back; one that refused a
// connection does not: it may just have too many.
func TestARefusedConnectionHoldsNoStartBack(t *testing.T) {
	for code, want := range map[codes.Code]int{codes.NotFound: 1, codes.Aborted: 0} {
		in(t, Config{}, vfs(2), func(t *testing.T, p *Pool, n *fakeNode) {
			kept := work("a").Demand
			kept.Start = func() (*api.StartRequest, error) { return &api.StartRequest{}, nil }
			do(p, work("a"))
			p.Keep(kept, 1, 9)
			over, again := make(chan bool), false
			p.Acquire(kept, func(l *Lease, err error) {
				if !again {
					again = true
					l.Retry(status.Error(code, "it is not there"))
					return
				}
				l.Release(true)
				over <- true
			})
			<-over
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, g := range p.state.groups {
				if g.tries.fails != want {
					t.Errorf("%s: %d failures, want %d", code, g.tries.fails, want)
				}
			}
		})
	}
}
