package knative

import (
	"container/heap"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	"knative.dev/serving/pkg/autoscaler/aggregation"
	"knative.dev/serving/pkg/autoscaler/scaling"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/pool"
	node "github.com/fastiov/fastiov/node-agent/api"
)

// A visit is a request: when it comes, and how long its program takes.
type visit struct{ at, takes time.Duration }

// A history is a load, and what the revision says of its scale.
type history struct {
	name    string
	visits  []visit
	ends    time.Duration // so late is nothing of it left
	slots   int64
	start   time.Duration // of a sandbox, and of a pod
	further map[string]string
}

// revision returns the revision of a history, at full utilization.
func (l *history) revision() *v1.Revision {
	v := &v1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "ann", Name: "of", UID: "1",
		Annotations: map[string]string{
			"autoscaling.knative.dev/target-utilization-percentage": "100"}}}
	for key, value := range l.further {
		v.Annotations["autoscaling.knative.dev/"+key] = value
	}
	v.Spec.ContainerConcurrency = &l.slots
	v.Spec.TimeoutSeconds = new(int64)
	*v.Spec.TimeoutSeconds = 3600
	v.Spec.Containers = []corev1.Container{{Image: "example.com/program"}}
	return v
}

// A cost holds what a load has cost.
type cost struct {
	waits   []time.Duration
	seconds float64 // of sandboxes or pods
	starts  int
}

func (c *cost) wait(part float64) time.Duration {
	slices.Sort(c.waits)
	return c.waits[int(part*float64(len(c.waits)-1))]
}

// A stage is a node on which a start takes its time and all else takes none.
type stage struct {
	node.UnimplementedNodeServer
	takes time.Duration
	mu    sync.Mutex
	begun map[string]time.Time
	cost
}

func (s *stage) Start(_ context.Context, in *node.StartRequest) (*node.StartReply, error) {
	s.mu.Lock()
	s.begun[in.Id] = time.Now()
	s.starts++
	s.mu.Unlock()
	time.Sleep(s.takes)
	return &node.StartReply{Id: in.Id, InitStatus: 200}, nil
}

func (s *stage) Stop(_ context.Context, in *node.StopRequest) (*node.StopReply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seconds += time.Since(s.begun[in.Id]).Seconds()
	delete(s.begun, in.Id)
	return &node.StopReply{}, nil
}

func (*stage) Status(context.Context, *node.StatusRequest) (*node.StatusReply, error) {
	return &node.StatusReply{MemoryMib: 1 << 30}, nil
}

// play has a test's part happen with a pool over such a node, on a clock that runs as fast as it
// can, and returns what it cost once all sandboxes have ended.
func play(t *testing.T, start time.Duration, part func(*testing.T, *scales)) (c cost) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{takes: start, begun: map[string]time.Time{}}
		p := pool.New(pool.Config{KeepAlive: time.Minute, Wait: time.Hour, Start: time.Hour},
			node.Local(s))
		d := access.NewDirectory(access.Limits{})
		if err := d.Add(&access.Subject{Name: "ann",
			Namespaces: []access.Namespace{access.NewKey().Owned("ann")}}); err != nil {
			t.Fatal(err)
		}
		scales := newScales(&road{pool: p, directory: d})
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { scales.run(ctx) })
		part(t, scales)
		stop()
		all.Wait()
		p.Close()
		c = s.cost
	})
	return c
}

// send has a request take its time in a sandbox, and returns after how long it got that.
func (s *scales) send(t *testing.T, v *v1.Revision, takes time.Duration) time.Duration {
	came, got := time.Now(), make(chan time.Duration)
	leave := s.arrive(v, nil, func() {
		s.pool.Acquire(s.describe(v), func(lease *pool.Lease, err error) {
			waited := time.Since(came)
			if err != nil {
				t.Error(err)
			} else {
				time.Sleep(takes)
				lease.Release(true)
			}
			got <- waited
		})
	})
	defer leave()
	return <-got
}

// ours returns what a load costs here.
func ours(t *testing.T, l *history) cost {
	var waits []time.Duration
	c := play(t, l.start, func(t *testing.T, s *scales) {
		v, begun := l.revision(), time.Now()
		s.follow(v, true)
		var all sync.WaitGroup
		var mu sync.Mutex
		for _, one := range l.visits {
			time.Sleep(time.Until(begun.Add(one.at)))
			all.Go(func() {
				waited := s.send(t, v, one.takes)
				mu.Lock()
				defer mu.Unlock()
				waits = append(waits, waited)
			})
		}
		all.Wait()
		time.Sleep(time.Until(begun.Add(l.ends)))
	})
	c.waits = waits
	return c
}

// A cluster serves a load with an activator that holds requests, and with pods that take their time
// to start. Its decisions are those of Knative's package.
type cluster struct {
	*history
	bounds         bounds
	decider        scaling.UniScaler
	now            time.Duration
	events         happenings
	pods           []*replica
	held           []visit // that wait
	inside         int     // requests, those that wait included
	since          time.Duration
	area           float64 // of this second
	stable, panics *aggregation.TimedFloat64Buckets
	scale          int
	begun          time.Duration
	cost
}

type replica struct {
	begun time.Duration
	ready bool
	busy  int
	ends  bool
}

type happening struct {
	at   time.Duration
	what func()
}

type happenings []happening

func (h happenings) Len() int           { return len(h) }
func (h happenings) Less(i, j int) bool { return h[i].at < h[j].at }
func (h happenings) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *happenings) Push(x any)        { *h = append(*h, x.(happening)) }
func (h *happenings) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

var epoch = time.Unix(1_800_000_000, 0)

func (c *cluster) ReadyCount() (n int, _ error) {
	for _, p := range c.pods {
		if p.ready && !p.ends {
			n++
		}
	}
	return n, nil
}

func (c *cluster) NotReadyCount() (int, error) { return 0, nil }

func (c *cluster) StableAndPanicConcurrency(
	_ types.NamespacedName, now time.Time,
) (float64, float64, error) {
	return c.stable.WindowAverage(now), c.panics.WindowAverage(now), nil
}

func (*cluster) StableAndPanicRPS(types.NamespacedName, time.Time) (float64, float64, error) {
	panic("no history has this metric")
}

// theirs returns what a load costs a cluster.
func theirs(l *history) cost {
	c := &cluster{history: l, bounds: boundsOf(l.revision(), true)}
	c.stable = aggregation.NewTimedFloat64Buckets(c.bounds.StableWindow, time.Second)
	c.panics = aggregation.NewTimedFloat64Buckets(c.bounds.panics, time.Second)
	c.decider = scaling.New(attribute.Set{}, noop.MeterProvider{}, "ann", "of", c, c,
		&c.bounds.DeciderSpec)
	for _, one := range l.visits {
		c.after(one.at, func() { c.arrive(one) })
	}
	c.after(time.Second, c.second)
	c.after(betweenDecisions, c.tick)
	for c.now < l.ends {
		e := heap.Pop(&c.events).(happening)
		c.now = e.at
		e.what()
	}
	for _, p := range c.pods {
		c.seconds += (c.now - p.begun).Seconds()
	}
	return c.cost
}

func (c *cluster) after(d time.Duration, what func()) {
	heap.Push(&c.events, happening{c.now + d, what})
}

func (c *cluster) count(more int) {
	c.area += float64(c.inside) * (c.now - c.since).Seconds()
	c.since, c.inside = c.now, c.inside+more
}

// arrive has a request come. The first that finds no pod is told the autoscaler at once.
func (c *cluster) arrive(one visit) {
	c.count(1)
	c.held = append(c.held, one)
	if c.scale == 0 {
		c.record(1)
		c.decide()
	}
	c.serve()
}

func (c *cluster) record(average float64) {
	c.stable.Record(epoch.Add(c.now), average)
	c.panics.Record(epoch.Add(c.now), average)
}

// second has the load of a second known: by its pods and its activator, if there are any.
func (c *cluster) second() {
	c.count(0)
	if c.area > 0 || len(c.pods) > 0 {
		c.record(c.area)
	}
	c.area = 0
	c.after(time.Second, c.second)
}

func (c *cluster) tick() {
	c.decide()
	c.after(betweenDecisions, c.tick)
}

// decide does what the autoscaler's reconciler does with a decision. The activator is in the way of
// every request, so the last pod may end at once.
func (c *cluster) decide() {
	n := int(c.decider.Scale(silent, epoch.Add(c.now)).DesiredPodCount)
	if n = max(n, c.bounds.least); c.bounds.most > 0 {
		n = min(n, c.bounds.most)
	}
	if n == 0 && c.now-c.begun < c.bounds.StableWindow {
		n = min(c.scale, 1)
	}
	if c.scale == 0 && n > 0 {
		c.begun = c.now
	}
	c.scale = n
	stay := 0
	for _, p := range c.pods {
		if !p.ends {
			stay++
		}
	}
	for ; stay < n; stay++ {
		p := &replica{begun: c.now}
		c.pods = append(c.pods, p)
		c.starts++
		c.after(c.start, func() {
			p.ready = true
			c.serve()
		})
	}
	// as a ReplicaSet does, those first that are not ready; of the others, to the cluster's
	// advantage, those that have least to do
	for _, p := range slices.SortedStableFunc(slices.Values(c.pods), func(a, b *replica) int {
		rank := func(p *replica) int {
			if !p.ready {
				return -1
			}
			return p.busy
		}
		return rank(a) - rank(b)
	}) {
		if stay > n && !p.ends {
			p.ends = true
			stay--
			c.gone(p)
		}
	}
}

func (c *cluster) gone(p *replica) {
	if p.ends && p.busy == 0 {
		c.seconds += (c.now - p.begun).Seconds()
		c.pods = slices.DeleteFunc(c.pods, func(other *replica) bool { return other == p })
	}
}

// serve gives those that wait to the pod that has least to do.
func (c *cluster) serve() {
	for len(c.held) > 0 {
		var to *replica
		for _, p := range c.pods {
			free := p.ready && !p.ends && (c.slots == 0 || p.busy < int(c.slots))
			if free && (to == nil || p.busy < to.busy) {
				to = p
			}
		}
		if to == nil {
			return
		}
		one := c.held[0]
		c.held = c.held[1:]
		to.busy++
		c.waits = append(c.waits, c.now-one.at)
		c.after(one.takes, func() {
			c.count(-1)
			to.busy--
			c.gone(to)
			c.serve()
		})
	}
}

// histories returns the loads that are compared.
func histories() (all []*history) {
	add := func(name string, slots int64, takes time.Duration, minutes float64,
		rate func(minute float64) float64, further map[string]string) {
		random := rand.New(rand.NewPCG(uint64(len(all)), 21))
		l := &history{name: name, slots: slots, start: time.Second, further: further,
			ends: time.Duration((minutes + 4) * float64(time.Minute))}
		for at := 0.0; ; { // a Poisson process, thinned
			const most = 200
			if at += random.ExpFloat64() / most; at/60 > minutes {
				break
			}
			if random.Float64()*most < rate(at/60) {
				l.visits = append(l.visits, visit{time.Duration(at * float64(time.Second)),
					time.Duration((0.5 + random.Float64()) * float64(takes))})
			}
		}
		all = append(all, l)
	}
	constant := func(rate float64) func(float64) float64 {
		return func(float64) float64 { return rate }
	}
	between := func(from, to, inside, outside float64) func(float64) float64 {
		return func(m float64) float64 {
			if m >= from && m < to {
				return inside
			}
			return outside
		}
	}
	const ms = time.Millisecond
	add("steady", 1, 200*ms, 6, constant(20), nil)
	add("steady, ten at once", 10, 500*ms, 6, constant(60), nil)
	add("steady, as many as come", 0, 500*ms, 6, constant(100), nil)
	add("rare", 1, 300*ms, 20, constant(0.02), nil)
	add("some a minute", 1, 500*ms, 15, constant(0.1), nil)
	add("slow programs", 1, 8*time.Second, 8, constant(1), nil)
	add("a step up", 1, 300*ms, 8, between(3, 99, 40, 4), nil)
	add("a step down", 1, 300*ms, 8, between(0, 3, 40, 4), nil)
	add("a spike", 1, 300*ms, 8, between(3, 3.2, 150, 2), nil)
	add("a spike from zero", 1, 300*ms, 6, between(1, 1.1, 150, 0), nil)
	add("spikes", 2, 300*ms, 10, func(m float64) float64 {
		if math.Mod(m, 2) < 0.1 {
			return 100
		}
		return 3
	}, nil)
	add("on and off", 4, 400*ms, 12, func(m float64) float64 {
		return 60 * float64(int(m/2)%2)
	}, nil)
	add("a ramp up", 1, 300*ms, 8, func(m float64) float64 { return 6 * m }, nil)
	add("a ramp down", 1, 300*ms, 8, func(m float64) float64 { return 48 - 6*m }, nil)
	add("a day", 5, 500*ms, 12, func(m float64) float64 {
		return 50 - 50*math.Cos(2*math.Pi*m/6)
	}, nil)
	add("a day of single ones", 1, 250*ms, 12, func(m float64) float64 {
		return 15 - 15*math.Cos(2*math.Pi*m/4)
	}, nil)
	add("at least two", 1, 300*ms, 6, between(2, 3, 30, 1), map[string]string{"min-scale": "2"})
	add("at most eight", 1, 300*ms, 6, between(2, 3, 40, 5), map[string]string{"max-scale": "8"})
	add("three to begin with", 1, 300*ms, 8, between(2, 4, 20, 0),
		map[string]string{"activation-scale": "3"})
	add("down later, in a short window", 1, 300*ms, 8, func(m float64) float64 {
		return 20 * float64(int(m)%2)
	}, map[string]string{"window": "20s", "scale-down-delay": "30s"})
	add("a step down, as many as come", 0, 2*time.Second, 8, between(0, 3, 180, 60), nil)
	return all
}

// These loads cost no more here than by Knative's autoscaler as it is in a cluster: nobody waits
// longer, sandboxes are there for no longer, and no more of them start.
func TestLoadsCostNoMoreThanInACluster(t *testing.T) {
	for _, l := range histories() {
		t.Run(l.name, func(t *testing.T) {
			here, there := ours(t, l), theirs(l)
			t.Logf("%d requests: p50 %s and %s, p99 %s and %s, %.0f and %.0f seconds (%.3f), "+
				"%d and %d starts", len(l.visits), here.wait(0.5), there.wait(0.5),
				here.wait(0.99), there.wait(0.99), here.seconds, there.seconds,
				here.seconds/there.seconds, here.starts, there.starts)
			if len(here.waits) != len(l.visits) || len(there.waits) != len(l.visits) {
				t.Errorf("%d and %d served", len(here.waits), len(there.waits))
			}
			if here.wait(0.5) > there.wait(0.5) || here.wait(0.99) > there.wait(0.99) {
				t.Error("requests wait longer")
			}
			if here.seconds > 1.02*there.seconds {
				t.Error("sandboxes are there for longer")
			}
			if here.starts > there.starts {
				t.Error("more sandboxes start")
			}
		})
	}
}

// What a revision says of its scale holds. Each part of the test is of a load from nothing.
func TestARevisionSaysItsScale(t *testing.T) {
	at := func(d time.Duration) func(*testing.T, *scales, *v1.Revision) {
		return func(t *testing.T, s *scales, v *v1.Revision) { time.Sleep(d) }
	}
	send := func(n int) func(*testing.T, *scales, *v1.Revision) {
		return func(t *testing.T, s *scales, v *v1.Revision) {
			var all sync.WaitGroup
			for range n {
				all.Go(func() { s.send(t, v, 4*time.Second) })
			}
			all.Wait()
		}
	}
	began := func(t *testing.T, s *scales, v *v1.Revision) {
		for !s.begin(v, initialOf(v)) {
			time.Sleep(soonest)
		}
	}
	settled := func(t *testing.T, s *scales, v *v1.Revision) { s.follow(v, false) }
	begun := func(t *testing.T, s *scales, v *v1.Revision) { s.begin(v, 1<<10) } // never
	type part struct {
		does  func(*testing.T, *scales, *v1.Revision)
		ready int
	}
	for name, c := range map[string]struct {
		says  map[string]string
		slots int64
		parts []part
		least int // starts
	}{
		"one request, one sandbox": {map[string]string{"target-utilization-percentage": "70"}, 1,
			[]part{{send(1), 1}, {at(50 * time.Second), 1}, {at(20 * time.Second), 0}}, 1},
		"each has one":   {nil, 1, []part{{send(6), 6}}, 6},
		"three have one": {nil, 3, []part{{send(6), 2}}, 2},
		"utilization": {map[string]string{"target-utilization-percentage": "50"}, 4,
			[]part{{send(8), 4}}, 4},
		"target":       {map[string]string{"target": "2"}, 0, []part{{send(6), 3}}, 3},
		"at most two":  {map[string]string{"max-scale": "2"}, 1, []part{{send(6), 2}}, 2},
		"at least two": {map[string]string{"min-scale": "2"}, 1, []part{{at(time.Hour), 2}}, 2},
		"three to begin with": {map[string]string{"activation-scale": "3"}, 1,
			[]part{{send(1), 3}, {at(2 * time.Minute), 0}}, 3},
		"three at first": {map[string]string{"initial-scale": "3"}, 1,
			[]part{{began, 3}, {settled, 3}, {at(50 * time.Second), 1},
				{at(20 * time.Second), 0}}, 3},
		"never as many as at first": {map[string]string{"max-scale": "2"}, 1,
			[]part{{begun, 0}, {settled, 0}, {at(2 * time.Minute), 0}}, 2},
		"a short window": {map[string]string{"window": "10s"}, 1,
			[]part{{send(1), 1}, {at(7 * time.Second), 1}, {at(10 * time.Second), 0}}, 1},
		"down later": {map[string]string{"window": "10s", "scale-down-delay": "1m"}, 1,
			[]part{{send(1), 1}, {at(50 * time.Second), 1}, {at(30 * time.Second), 0}}, 1},
		"the last stays": {map[string]string{"scale-to-zero-pod-retention-period": "2m"}, 1,
			[]part{{send(1), 1}, {at(2 * time.Minute), 1}, {at(90 * time.Second), 0}}, 1},
		"requests in a second": {map[string]string{"metric": "rps", "target": "1"}, 0,
			[]part{{send(3), 2}}, 2}, // three within the two seconds of a decision
	} {
		t.Run(name, func(t *testing.T) {
			h := history{slots: c.slots, further: c.says}
			v := h.revision()
			cost := play(t, 100*time.Millisecond, func(t *testing.T, s *scales) {
				s.follow(v, true)
				for n, part := range c.parts {
					part.does(t, s, v)
					if got := s.pool.Ready(s.describe(v)); got != part.ready {
						t.Errorf("after part %d there are %d, want %d", n, got, part.ready)
					}
				}
			})
			if cost.starts != c.least {
				t.Errorf("%d starts, want %d", cost.starts, c.least)
			}
		})
	}
}

// A hundred requests that come to nothing at once are not kept waiting by decisions.
func TestACrowdIsSeenAtOnce(t *testing.T) {
	h := history{slots: 1}
	v := h.revision()
	var all sync.WaitGroup
	cost := play(t, time.Second, func(t *testing.T, s *scales) {
		for range 100 {
			all.Go(func() {
				if waited := s.send(t, v, 300*time.Millisecond); waited > 1500*time.Millisecond {
					t.Errorf("one waits for %s", waited)
				}
			})
		}
		all.Wait()
	})
	if cost.starts > 100 {
		t.Errorf("%d starts", cost.starts)
	}
}
