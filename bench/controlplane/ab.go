package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"time"
)

// An AB compares two builds of fastiov. In each pair both have a turn under the same load, in an
// order that alternates from pair to pair, so that other load of the machine affects both. It uses
// only their command lines and HTTP, so the base may be old.
type AB struct {
	Base, Head string        // the two binaries
	Slice      time.Duration // how long each side of a pair is under load
	Within     time.Duration // for all pairs of both loads
	Out        io.Writer     // progress output
}

// An abLoad is the load for both builds: how many actions there are, over how many connections they
// are called, and the requests of a slice.
type abLoad struct {
	name    string
	actions int
	conns   int
	flags   []string
	cold    bool // each call starts a sandbox
	slice   func(l *load, ctx context.Context, d time.Duration) (tally, error)
}

const (
	leastPairs, mostPairs = 30, 400
	atOnce                = 200
)

var (
	warmCalls = abLoad{"control-plane", 1, connections, nil, false, (*load).during}
	simBurst  = abLoad{"burst", atOnce, atOnce, eachCold, true, (*load).bursts}
	eachCold  = []string{"--keep-alive", "0s", "--memory", "51200"}
)

// Run measures both loads, each for half of the time. Every ratio is a result; none is an error.
func (ab *AB) Run(ctx context.Context) (r *ABResult, err error) {
	r = &ABResult{CPUs: runtime.NumCPU()}
	begin := time.Now()
	if r.ControlPlane, err = ab.compare(ctx, warmCalls, begin.Add(ab.Within/2)); err != nil {
		return nil, fmt.Errorf("%s: %w", warmCalls.name, err)
	}
	if r.Burst, err = ab.compare(ctx, simBurst, begin.Add(ab.Within)); err != nil {
		return nil, fmt.Errorf("%s: %w", simBurst.name, err)
	}
	return r, nil
}

// A side is one of the two compared servers, with the results of its slices.
type side struct {
	contender
	counts         Counts
	begin          spent // before the first turn
	rates, perCPUs []float64
}

func (ab *AB) compare(ctx context.Context, load abLoad, end time.Time) (*Compared, error) {
	var sides [2]*side // base, head
	for i, command := range []string{ab.Base, ab.Head} {
		s, err := ab.side(ctx, load, command)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", []string{"base", "head"}[i], err)
		}
		defer s.stop()
		sides[i] = s
	}
	c := &Compared{}
	for first := rand.IntN(2); !c.enough(end); c.Pairs++ {
		for turn := range sides {
			if err := sides[(first+c.Pairs+turn)%2].turn(ctx, load, ab.Slice); err != nil {
				return nil, err
			}
		}
		if n := c.Pairs + 1; n%10 == 0 || n == leastPairs {
			c.weigh(sides)
			fmt.Fprintf(ab.Out,
				"ab  %s  pair %d/%d  head to base: %v a second, %v a second of its CPU\n",
				load.name, n, mostPairs, c.PerSecond, c.PerCPUSecond)
		}
	}
	c.weigh(sides)
	if !c.Settled && c.Pairs < mostPairs {
		fmt.Fprintf(ab.Out, "ab  %s  the time was over after %d pairs: nothing is settled\n",
			load.name, c.Pairs)
	}
	for _, s := range sides {
		if err := s.count(); err != nil {
			return nil, err
		}
		c.failures.count(&s.contender)
	}
	c.Base, c.Head = sides[0].counts, sides[1].counts
	return c, nil
}

func (c *Compared) enough(end time.Time) bool {
	return c.Pairs >= mostPairs || c.Pairs > 0 && time.Now().After(end) ||
		c.Pairs >= leastPairs && c.Pairs%10 == 0 && c.Settled
}

func (c *Compared) weigh(sides [2]*side) {
	c.PerSecond = ratioOf(sides[0].rates, sides[1].rates)
	c.PerCPUSecond = ratioOf(sides[0].perCPUs, sides[1].perCPUs)
	c.Settled = len(sides[0].rates) >= leastPairs && c.PerSecond.narrow() && c.PerCPUSecond.narrow()
}

// side starts the server of one side of the comparison, deploys the actions that the load calls,
// and warms the server up.
func (ab *AB) side(ctx context.Context, load abLoad, command string) (_ *side, err error) {
	b := Bench{Command: command}
	flags := append([]string{"--retain", "64"}, load.flags...)
	up, calls, err := b.deployed(ctx, load.actions, 128, flags...)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			up.stop()
		}
	}()
	s := &side{contender: contender{server: up}}
	s.load.address, s.load.conns, s.load.next = up.address, load.conns, inTurn(calls)
	s.load.want = http.StatusOK
	if s.counts.Idle, err = up.descriptors(); err != nil {
		return nil, err
	}
	return s, s.warmUp(ctx, load, ab.Slice)
}

// warmUp puts the server under the load until it starts no more sandboxes. If each call starts one,
// it does so once.
func (s *side) warmUp(ctx context.Context, load abLoad, slice time.Duration) (err error) {
	const most = 50
	for range most {
		cold := s.begin.coldStarts
		if _, err = load.slice(&s.load, ctx, 2*slice); err != nil {
			return err
		}
		if s.begin, err = s.spent(); err != nil {
			return err
		}
		if load.cold || s.begin.coldStarts == cold {
			break
		}
	}
	return nil
}

// turn puts the server under load for a slice.
func (s *side) turn(ctx context.Context, load abLoad, slice time.Duration) error {
	before, err := cpuOf(s.cmd.Process.Pid)
	if err != nil {
		return err
	}
	t, err := load.slice(&s.load, ctx, slice)
	if err != nil {
		return err
	}
	after, err := cpuOf(s.cmd.Process.Pid)
	if err != nil {
		return err
	}
	s.all.add(t)
	if t.answered == 0 {
		return errors.New("no call was answered: " + t.example)
	}
	s.rates = append(s.rates, float64(t.answered)/t.elapsed.Seconds())
	s.perCPUs = append(s.perCPUs, float64(t.answered)/(after-before).Seconds())
	return nil
}

// count fills in the counts after all turns.
func (s *side) count() error {
	end, err := s.spent()
	if err != nil {
		return err
	}
	calls := float64(s.all.answered + s.all.failed)
	s.counts.ColdStarts = (end.coldStarts - s.begin.coldStarts) / calls
	s.counts.Allocations = (end.allocations - s.begin.allocations) / calls
	resident, err := residentOf(s.cmd)
	if err != nil {
		return err
	}
	s.counts.ResidentMiB = resident.MiB
	if s.counts.ChildFaults, err = s.childFaults(); err != nil {
		return err
	}
	s.counts.After, err = s.descriptors()
	return err
}

// bursts sends one request on each connection at once, waits for all answers, and repeats that for
// the given time.
func (l *load) bursts(ctx context.Context, d time.Duration) (all tally, err error) {
	for begin := time.Now(); time.Since(begin) < d && err == nil; {
		var t tally
		t, err = l.each(ctx, func(conn int, c *connection) (t tally, err error) {
			return t, c.call(l.next(conn), l.want, &t)
		})
		all.add(t)
		all.elapsed = time.Since(begin)
	}
	return all, err
}
