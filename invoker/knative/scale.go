package knative

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	asconfig "knative.dev/serving/pkg/autoscaler/config"
	"knative.dev/serving/pkg/autoscaler/scaling"
	kpa "knative.dev/serving/pkg/reconciler/autoscaling/kpa/resources"
	autoscaler "knative.dev/serving/pkg/reconciler/autoscaling/resources"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/pool"
)

// How many sandboxes a revision should have is looked at so often, as in Knative, and so often
// while it is crowded.
const betweenDecisions, betweenHurried = 2 * time.Second, 100 * time.Millisecond

// Scales decide how many sandboxes each revision should have, by Knative's autoscaler. The pool
// starts and ends them.
type scales struct {
	pool      *pool.Pool
	directory *access.Directory
	describe  func(*v1.Revision) pool.Demand
	// Why no sandbox of it can be started. The world is asked, which has a scale forgotten while it
	// is locked: so this is asked before the scales are locked.
	lacks func(*v1.Revision) error
	warn  warn
	kick  chan struct{} // of one: a revision has become crowded

	mu sync.Mutex
	of map[string]*scale // by group; those that have requests, or should have sandboxes
}

func newScales(r *road) *scales {
	return &scales{pool: r.pool, directory: r.directory, describe: r.demand, lacks: r.lacks,
		warn: func(*v1.Revision, string, string) {}, kick: make(chan struct{}, 1),
		of: map[string]*scale{}}
}

// A warn tells a revision's owner what is wrong with it: a word for the reason, and a sentence.
type warn func(of *v1.Revision, reason, words string)

// A scale decides how many sandboxes one revision should have. It implements what Knative's
// autoscaler asks of others: how much load there is, and how many sandboxes are ready.
type scale struct {
	*scales
	revision *v1.Revision
	demand   pool.Demand
	decider  scaling.UniScaler
	bounds   bounds
	load     load
	phase    phase
	first    int       // so many at least, for the beginning
	begun    time.Time // it has had sandboxes since
	idle     time.Time // it should have had none since
	short    time.Time // it has had less than min-scale since, or was said to
	level    int
	most     int // that its namespace may keep
}

// A phase says how far the beginning of a revision is.
type phase int

const (
	unheard phase = iota // what its revision says has not been taken in: that may be gone
	begins               // it is to have its first sandboxes
	fades                // it keeps fewer of those at each look, as in Knative
)

// Bounds hold what a revision says of its scale.
type bounds struct {
	scaling.DeciderSpec
	least, most, activation int
	panics, retains         time.Duration // its panic window, and how long its last sandbox stays
	remembers               time.Duration // how long what it needed may still count
}

var silent = zap.NewNop().Sugar()

var standard, _ = asconfig.NewConfigFromMap(nil) // Knative's, which always are in order

func boundsOf(v *v1.Revision, reachable bool) bounds {
	pa := &v1alpha1.PodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: v.Namespace,
		Name: v.Name, Annotations: v.Annotations}}
	pa.Spec.ContainerConcurrency = v.Spec.GetContainerConcurrency()
	pa.Spec.Reachability = v1alpha1.ReachabilityReachable
	if !reachable {
		pa.Spec.Reachability = v1alpha1.ReachabilityUnreachable
	}
	b := bounds{DeciderSpec: kpa.MakeDecider(pa, standard).Spec}
	b.panics = autoscaler.MakeMetric(pa, "", standard).Spec.PanicWindow
	b.remembers = b.StableWindow + b.ScaleDownDelay
	least, most := pa.ScaleBounds(standard)
	b.least, b.most, b.activation = int(least), int(most), int(b.ActivationScale)
	if b.retains = standard.ScaleToZeroPodRetentionPeriod; reachable {
		if d, said := pa.ScaleToZeroPodRetention(); said {
			b.retains = d
		}
	}
	return b
}

// get returns the scale of a revision; reachable: a route leads to it. The caller holds the lock.
func (s *scales) get(v *v1.Revision, reachable bool) *scale {
	if c := s.of[groupOf(v)]; c != nil {
		return c
	}
	c := &scale{scales: s, revision: v, demand: s.describe(v), bounds: boundsOf(v, reachable)}
	c.load.remember(c.bounds.remembers)
	c.decider = scaling.New(attribute.Set{}, noop.MeterProvider{}, v.Namespace, v.Name, c, c,
		&c.bounds.DeciderSpec)
	s.of[groupOf(v)] = c
	return c
}

// arrive counts a request to a revision, which may lack something, has it placed, and the revision
// scaled at once where it has nothing, or far less than it needs. The request is counted until it
// leaves.
func (s *scales) arrive(v *v1.Revision, lacks error, place func()) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	c := s.get(v, true)
	c.load.add(1, now)
	place()
	if c.crowded() {
		c.set(max(c.decide(now), c.level), lacks, now)
	}
	if c.crowded() {
		select {
		case s.kick <- struct{}{}:
		default:
		}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		c.load.add(-1, time.Now())
	}
}

// failed takes in that a start has failed which a request waited for. Unless others wait, there is
// none that the revision does not keep.
func (s *scales) failed(v *v1.Revision) {
	lacks := s.lacks(v)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.of[groupOf(v)]
	if c != nil && c.load.requests <= 1 && c.pool.Ready(c.demand) == 0 {
		c.set(max(c.least(), c.first), lacks, time.Now())
	}
}

// least returns how many sandboxes the revision keeps by its min-scale. Nobody would end what one
// keeps that was deleted meanwhile.
func (c *scale) least() int {
	if c.phase == unheard {
		return 0
	}
	return c.bounds.least
}

// crowded reports whether the revision has nothing for its requests, or so many of them that
// Knative would panic if that went on.
func (c *scale) crowded() bool {
	if c.level == 0 {
		return c.load.requests > 0
	}
	if c.bounds.most > 0 && c.level >= c.bounds.most {
		return false
	}
	return c.bounds.ScalingMetric != autoscaling.RPS &&
		float64(c.load.requests) > c.bounds.PanicThreshold*c.bounds.TargetValue*float64(c.level)
}

// decide returns how many sandboxes the revision should have: as many as Knative's autoscaler says,
// within the revision's bounds. It has no more than it had requests at once, so that one request
// never starts two, and what is in use is not taken away.
func (c *scale) decide(now time.Time) int {
	n := int(c.decider.Scale(silent, now).DesiredPodCount)
	_, _, most := c.load.over(c.bounds.remembers, now)
	if n = min(n, max(most, c.bounds.activation)); c.level == 0 && c.load.requests == 0 {
		n = 0 // nobody waits for one
	}
	inUse := math.Ceil(float64(c.load.requests) / c.bounds.TotalValue)
	n = max(n, min(int(inUse), c.level), c.least(), c.first)
	if c.bounds.most > 0 {
		n = min(n, c.bounds.most)
	}
	if n > 0 {
		c.idle = time.Time{}
		return n
	}
	if c.idle.IsZero() {
		c.idle = now
	}
	if now.Sub(c.begun) < c.bounds.StableWindow || now.Sub(c.idle) < c.bounds.retains {
		return min(c.level, 1)
	}
	return 0
}

// set has the pool have so many sandboxes. A namespace keeps no more than it may have calls under
// way: those could use no others. No room is made for what cannot start.
func (c *scale) set(level int, lacks error, now time.Time) {
	if lacks != nil {
		level = min(level, c.pool.Started(c.demand)) // one that rests comes back
	}
	most := 0
	if owner, err := c.directory.Owner(c.demand.Namespace); err == nil {
		most = owner.Limits.ConcurrentInvocations
	}
	if level == c.level && most == c.most {
		return
	}
	if c.level == 0 {
		c.begun = now
	}
	c.level, c.most = level, most
	c.pool.Keep(c.demand, level, most)
}

// follow takes in what a revision says of its scale, and whether a route leads to it.
func (s *scales) follow(v *v1.Revision, reachable bool) {
	lacks := s.lacks(v)
	s.mu.Lock()
	defer s.mu.Unlock()
	b := boundsOf(v, reachable)
	if s.of[groupOf(v)] == nil && b.least == 0 {
		return
	}
	c, now := s.get(v, reachable), time.Now()
	if c.revision, c.demand, c.bounds = v, s.describe(v), b; c.phase == begins {
		c.first = 0 // it is settled, and has not reached them
	}
	c.phase = fades
	c.decider.Update(&c.bounds.DeciderSpec)
	c.load.remember(b.remembers)
	c.set(c.decide(now), lacks, now)
}

// begin has a revision have its first sandboxes, and reports whether so many are ready.
func (s *scales) begin(v *v1.Revision, initial int) (achieved bool) {
	lacks := s.lacks(v)
	s.mu.Lock()
	defer s.mu.Unlock()
	c, now := s.get(v, false), time.Now() // its routes follow
	c.phase, c.first = begins, initial
	if achieved = s.pool.Ready(c.demand) >= initial; achieved {
		c.phase = fades
	}
	c.set(max(c.decide(now), c.level, 1), lacks, now)
	return achieved
}

// forget has a revision that is gone have no sandboxes.
func (s *scales) forget(v *v1.Revision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, groupOf(v))
	s.pool.Retire(groupOf(v))
}

// run decides again and again.
func (s *scales) run(ctx context.Context) {
	regular := time.NewTicker(betweenDecisions)
	defer regular.Stop()
	var hurried <-chan time.Time
	for {
		crowd := false
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
			crowd = true
		case <-hurried:
			hurried, crowd = nil, s.decideAll(true)
		case <-regular.C:
			crowd = s.decideAll(false)
		}
		if crowd && hurried == nil {
			hurried = time.After(betweenHurried)
		}
	}
}

// decideAll decides about all; hurried: about those that are crowded. It reports whether any is so
// still.
func (s *scales) decideAll(hurried bool) (crowded bool) {
	one := (*scale).regular
	if hurried {
		one = (*scale).hurry
	}
	s.mu.Lock()
	all := map[string]*v1.Revision{}
	for group, c := range s.of {
		if !hurried || c.crowded() {
			all[group] = c.revision
		}
	}
	s.mu.Unlock()
	for group, v := range all {
		lacks := s.lacks(v)
		s.mu.Lock()
		if c := s.of[group]; c != nil {
			crowded = one(c, lacks, time.Now()) || crowded
		}
		s.mu.Unlock()
	}
	return crowded
}

func (c *scale) hurry(lacks error, now time.Time) bool {
	if c.crowded() {
		c.set(max(c.decide(now), c.level), lacks, now)
	}
	return c.crowded()
}

func (c *scale) regular(lacks error, now time.Time) bool {
	if c.phase == fades {
		c.first /= 2
		c.keepsLeast(lacks, now)
	}
	if c.set(c.decide(now), lacks, now); c.level+c.load.requests+c.least() == 0 {
		delete(c.of, c.demand.Group)
	}
	return c.crowded()
}

// keepsLeast has the revision's owner told, again and again, that it has less than its min-scale.
func (c *scale) keepsLeast(lacks error, now time.Time) {
	ready := c.pool.Ready(c.demand)
	switch {
	case ready >= c.bounds.least:
		c.short = time.Time{}
	case c.short.IsZero():
		c.short = now
	case now.Sub(c.short) >= roomWithin:
		c.short = now
		why := "the others wait for room, of the node or of the namespace, have failed to start, " +
			"or are not ready"
		if lacks != nil {
			why = lacks.Error()
		}
		c.warn(c.revision, "MinScaleNotKept", fmt.Sprintf(
			"%d of %d sandboxes of min-scale are ready: %s", ready, c.bounds.least, why))
	}
}

// ReadyCount returns how many sandboxes take requests.
func (c *scale) ReadyCount() (int, error) { return c.pool.Ready(c.demand), nil }

// NotReadyCount is asked for by no one.
func (c *scale) NotReadyCount() (int, error) { return 0, nil }

// StableAndPanicConcurrency returns how many requests there were on average in both windows.
func (c *scale) StableAndPanicConcurrency(
	_ types.NamespacedName, now time.Time,
) (stable, panics float64, err error) {
	stable, _, _ = c.load.over(c.bounds.StableWindow, now)
	panics, _, _ = c.load.over(c.bounds.panics, now)
	return stable, panics, nil
}

// StableAndPanicRPS returns how many requests came in a second of both windows.
func (c *scale) StableAndPanicRPS(
	_ types.NamespacedName, now time.Time,
) (stable, panics float64, err error) {
	_, stable, _ = c.load.over(c.bounds.StableWindow, now)
	_, panics, _ = c.load.over(c.bounds.panics, now)
	return stable, panics, nil
}
