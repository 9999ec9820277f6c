package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/fastiov/fastiov/bench"
)

// Cold measures calls that each start a sandbox, which ends with the call. A call counts once its
// record can be read.
type Cold struct {
	Connections int             `json:"connections"`
	PerSecond   bench.Quantiles `json:"per_second"` // answered and recorded
	CPU         bench.Quantiles `json:"cpu_us"`     // per start, of the server alone
	LoadCPU     bench.Quantiles `json:"load_cpu_us"`
	Allocations bench.Quantiles `json:"allocations"`
	Answered    int             `json:"answered"`
	ColdStarts  int             `json:"cold_starts"`
	failures
}

func (b *Bench) cold(ctx context.Context) (*Cold, error) {
	up, calls, err := b.deployed(ctx, 100, 128, "--keep-alive", "0s")
	if err != nil {
		return nil, err
	}
	defer up.stop()
	r := &Cold{Connections: connections}
	c := &contender{server: up, load: load{up.address, connections, http.StatusOK, inTurn(calls)}}
	if _, err := c.load.during(ctx, b.Slice); err != nil { // warm up
		return nil, err
	}
	var rates []float64
	for round := range b.Rounds {
		before, err := up.recorded()
		if err != nil {
			return nil, err
		}
		begin := time.Now()
		s, err := c.measure(ctx, b.Slice)
		if err != nil {
			return nil, err
		}
		err = up.await(ctx, func() error {
			n, err := up.recorded()
			if n < before+int(s.answered) {
				err = errors.Join(err, fmt.Errorf("of %.0f answered, %d are recorded",
					s.answered, n-before))
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		rates = append(rates, s.answered/time.Since(begin).Seconds())
		r.Answered += int(s.answered)
		r.ColdStarts += int(s.cold)
		b.say("cold_decisions  round %d/%d  %.0f/s", round+1, b.Rounds, rates[round])
	}
	r.count(c)
	r.PerSecond, r.CPU, r.LoadCPU, r.Allocations = bench.QuantilesOf(rates),
		bench.QuantilesOf(c.cpu), bench.QuantilesOf(c.loadCPU), bench.QuantilesOf(c.allocations)
	return r, nil
}

// Flatness shows what a call costs while the pool holds so many sandboxes.
type Flatness struct {
	Points []Point `json:"points"`
	// the largest median of the points divided by the smallest
	WarmRatio float64 `json:"warm_ratio"`
	ColdRatio float64 `json:"cold_ratio"`
	failures
}

// A Point is the result for one number of sandboxes, which just fits on the node. Figures are µs of
// the server's CPU time.
type Point struct {
	Sandboxes int `json:"sandboxes"`
	// a call that finds its sandbox; the calls go to all in turn
	Warm bench.Quantiles `json:"warm_cpu_us"`
	// a call that starts a sandbox and evicts the one that was idle longest
	Cold    bench.Quantiles `json:"cold_cpu_us"`
	Evicted float64         `json:"cold_share"` // the share of the cold calls that did start one
	// the number of warm calls that did start one
	Strayed int `json:"warm_cold_starts"`
}

// A held server holds so many sandboxes.
type held struct {
	Point
	warm, cold *contender
}

func (b *Bench) flatness(ctx context.Context) (*Flatness, error) {
	var all []*held
	for _, n := range []int{10, 100, 1000, 10_000} {
		b.say("flatness  filling %d", n)
		h, err := b.hold(ctx, n)
		if err != nil {
			return nil, err
		}
		defer h.warm.stop()
		all = append(all, h)
	}
	for round := range b.Rounds {
		for _, h := range all {
			s, err := h.warm.measure(ctx, b.Slice)
			if err != nil {
				return nil, err
			}
			h.Strayed += int(s.cold)
			b.say("flatness  round %d/%d  %.0f µs a warm call beside %d", round+1, b.Rounds,
				s.cpu, h.Sandboxes)
		}
	}
	for round := range b.Rounds { // these change which sandboxes there are, so they come last
		for _, h := range all {
			s, err := h.cold.measure(ctx, b.Slice)
			if err != nil {
				return nil, err
			}
			h.Evicted += s.cold / s.answered / float64(b.Rounds)
			b.say("flatness  round %d/%d  %.0f µs an eviction and start beside %d", round+1,
				b.Rounds, s.cpu, h.Sandboxes)
		}
	}
	r := &Flatness{}
	var warm, cold []float64
	for _, h := range all {
		h.Warm, h.Cold = bench.QuantilesOf(h.warm.cpu), bench.QuantilesOf(h.cold.cpu)
		r.Points = append(r.Points, h.Point)
		warm, cold = append(warm, h.Warm.Median), append(cold, h.Cold.Median)
		r.count(h.warm, h.cold)
	}
	r.WarmRatio, r.ColdRatio = slices.Max(warm)/slices.Min(warm), slices.Max(cold)/slices.Min(cold)
	return r, nil
}

// hold starts a server and starts a sandbox in it for each of n actions.
func (b *Bench) hold(ctx context.Context, n int) (*held, error) {
	const conns, more, memory = 4, 16, 128
	up, calls, err := b.deployed(ctx, n+more, memory, "--keep-alive", "10h",
		"--memory", fmt.Sprint(n*memory), "--changes-per-minute", unlimited,
		"--max-entities", unlimited)
	if err != nil {
		return nil, err
	}
	fill := load{up.address, conns, http.StatusOK, inTurn(calls[:n])}
	t, err := fill.times(ctx, n)
	if err == nil && t.failed > 0 {
		err = errors.New(t.example)
	}
	if err != nil {
		up.stop()
		return nil, err
	}
	return &held{
		Point: Point{Sandboxes: n},
		warm: &contender{
			server: up, load: load{up.address, conns, http.StatusOK, shared(calls[:n], conns)},
		},
		cold: &contender{
			server: up,
			load: load{up.address, conns, http.StatusOK,
				inTurn(slices.Concat(calls[n:], calls[:n]))},
		},
	}, nil
}
