package controlplane

import (
	"context"
	"net/http"
	"os"
	"time"

	"github.com/fastiov/fastiov/bench"
)

// Warm compares blocking calls that find a warm sandbox with calls of a plain handler.
type Warm struct {
	Connections int             `json:"connections"`
	Fastiov     Side            `json:"fastiov"`
	Plain       Side            `json:"plain"`
	Ratio       bench.Quantiles `json:"ratio"` // of the calls per second, by round
	Apart       Apart           `json:"apart"`
	LoadCPU     bench.Quantiles `json:"load_cpu_us"`
	Open        Open            `json:"open_loop"`
	ColdStarts  int             `json:"cold_starts"` // during the measurement
	failures
}

// A Side is one server. CPU is in µs per call, of the server alone.
type Side struct {
	PerSecond   bench.Quantiles `json:"per_second"`
	CPU         bench.Quantiles `json:"cpu_us"`
	Allocations bench.Quantiles `json:"allocations"`
}

// Apart is an invoker whose agent is another process. Ratio divides its calls per second by those
// of one process, by round. CPU is that of both processes in µs per call.
type Apart struct {
	PerSecond bench.Quantiles `json:"per_second"`
	CPU       bench.Quantiles `json:"cpu_us"`
	Ratio     bench.Quantiles `json:"ratio"`
}

// Open compares latencies at half of the most calls per second that fastiov answers. Each figure is
// the 99th percentile of a round, in ms.
type Open struct {
	Rate    float64         `json:"rate"`
	Fastiov bench.Quantiles `json:"fastiov_p99_ms"`
	Plain   bench.Quantiles `json:"plain_p99_ms"`
	Added   bench.Quantiles `json:"added_p99_ms"` // by round
}

const connections = 16

func (b *Bench) warm(ctx context.Context) (*Warm, error) {
	plain, err := b.plain(ctx)
	if err != nil {
		return nil, err
	}
	defer plain.stop()
	fastiov, calls, err := b.deployed(ctx, 1, 128)
	if err != nil {
		return nil, err
	}
	defer fastiov.stop()
	w := &Warm{Connections: connections}
	ours := &contender{
		server: fastiov, load: load{fastiov.address, connections, http.StatusOK, always(calls[0])},
	}
	theirs := &contender{
		server: plain,
		load:   load{plain.address, connections, http.StatusOK, always(plain.invoke("action-0"))},
	}
	apart, err := b.warmApart(ctx)
	if err != nil {
		return nil, err
	}
	defer apart.stop()
	for _, c := range []*contender{ours, theirs, apart} { // warm all of them up
		if _, err := c.load.during(ctx, b.Slice); err != nil {
			return nil, err
		}
	}
	before, err := fastiov.spent()
	if err != nil {
		return nil, err
	}
	if err := w.throughput(ctx, b, ours, theirs, apart); err != nil {
		return nil, err
	}
	if err := w.latency(ctx, b, ours, theirs); err != nil {
		return nil, err
	}
	after, err := fastiov.spent()
	w.ColdStarts = int(after.coldStarts - before.coldStarts)
	w.count(ours, theirs, apart)
	return w, err
}

func (b *Bench) warmApart(ctx context.Context) (*contender, error) {
	metrics, err := bench.FreeAddress() // so that it keeps metrics as the other one does
	if err != nil {
		return nil, err
	}
	s, err := b.apart(ctx, nil, []string{"--metrics", metrics})
	if err != nil {
		return nil, err
	}
	calls, err := s.deploy(ctx, 1, 128)
	return &contender{server: s,
		load: load{s.address, connections, http.StatusOK, always(calls[0])}}, err
}

func (w *Warm) throughput(ctx context.Context, b *Bench, ours, theirs, apart *contender) error {
	var ratios, joined []float64
	for round := range b.Rounds {
		a, err := ours.measure(ctx, b.Slice)
		if err != nil {
			return err
		}
		p, err := theirs.measure(ctx, b.Slice)
		if err != nil {
			return err
		}
		two, err := apart.measure(ctx, b.Slice)
		if err != nil {
			return err
		}
		ratios = append(ratios, a.perSecond/p.perSecond)
		joined = append(joined, two.perSecond/a.perSecond)
		b.say("warm  round %d/%d  %.0f/s, plain %.0f/s, apart %.0f/s", round+1, b.Rounds,
			a.perSecond, p.perSecond, two.perSecond)
	}
	w.Fastiov, w.Plain = ours.side(), theirs.side()
	w.Ratio = bench.QuantilesOf(ratios)
	side := apart.side()
	w.Apart = Apart{side.PerSecond, side.CPU, bench.QuantilesOf(joined)}
	w.LoadCPU = bench.QuantilesOf(ours.loadCPU)
	return nil
}

func (w *Warm) latency(ctx context.Context, b *Bench, ours, theirs *contender) error {
	w.Open.Rate = w.Fastiov.PerSecond.Median / 2
	var a, p, added []float64
	for round := range b.Rounds {
		for _, c := range []struct {
			of *contender
			to *[]float64
		}{{ours, &a}, {theirs, &p}} {
			c.of.load.conns = 4 * connections // so that a connection is always free
			t, latencies, err := c.of.load.at(ctx, w.Open.Rate, b.Slice)
			if err != nil {
				return err
			}
			c.of.all.add(t)
			*c.to = append(*c.to, bench.QuantilesOf(latencies).P99)
		}
		added = append(added, a[round]-p[round])
		b.say("warm  round %d/%d  p99 %.2f ms, plain %.2f ms at %.0f/s", round+1, b.Rounds,
			a[round], p[round], w.Open.Rate)
	}
	w.Open.Fastiov, w.Open.Plain, w.Open.Added = bench.QuantilesOf(a), bench.QuantilesOf(p),
		bench.QuantilesOf(added)
	return nil
}

// A contender is a server under a load, with its results by round.
type contender struct {
	*server
	load                                 load
	all                                  tally
	perSecond, cpu, allocations, loadCPU []float64
}

// failures counts the calls whose status was not the expected one.
type failures struct {
	Failed  int    `json:"failed"`
	Failure string `json:"failure,omitempty"` // an example
}

func (f *failures) count(of ...*contender) {
	for _, c := range of {
		f.Failed += int(c.all.failed)
		if f.Failure == "" {
			f.Failure = c.all.example
		}
	}
}

// A sample is one round.
type sample struct {
	answered, cold, perSecond, cpu float64
}

func (c *contender) measure(ctx context.Context, d time.Duration) (sample, error) {
	before, err := c.spent()
	if err != nil {
		return sample{}, err
	}
	self, err := cpuOf(os.Getpid())
	if err != nil {
		return sample{}, err
	}
	t, err := c.load.during(ctx, d)
	if err != nil {
		return sample{}, err
	}
	c.all.add(t)
	selfAfter, err := cpuOf(os.Getpid())
	if err != nil {
		return sample{}, err
	}
	after, err := c.spent()
	calls := float64(max(t.answered, 1))
	s := sample{
		answered: float64(t.answered), cold: after.coldStarts - before.coldStarts,
		perSecond: float64(t.answered) / t.elapsed.Seconds(),
		cpu:       micros(after.cpu-before.cpu) / calls,
	}
	c.perSecond, c.cpu = append(c.perSecond, s.perSecond), append(c.cpu, s.cpu)
	c.loadCPU = append(c.loadCPU, micros(selfAfter-self)/calls)
	c.allocations = append(c.allocations, (after.allocations-before.allocations)/calls)
	return s, err
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func (c *contender) side() Side {
	return Side{bench.QuantilesOf(c.perSecond), bench.QuantilesOf(c.cpu),
		bench.QuantilesOf(c.allocations)}
}
