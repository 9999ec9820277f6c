// Package telemetry counts calls and traces the cold starts that some waited for, alike for every
// API.
package telemetry

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/fastiov/fastiov/invoker/coldstart"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api/metrics"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// The APIs whose calls are counted.
const (
	OpenWhisk = "openwhisk"
	Knative   = "knative"
)

// APIs lists them.
var APIs = []string{OpenWhisk, Knative}

// Starts lists the ways to a sandbox by which calls are labelled.
var Starts = []pool.Kind{pool.Warm, pool.Warming, pool.Prewarm, pool.Cold}

// A Status says how a call ended, in OpenWhisk's words and by its numbers.
type Status int

const (
	Success          Status = iota
	ApplicationError        // the program answered with an error
	DeveloperError          // the program could not be run, or broke off
	InternalError           // not the program's fault
	Refused                 // there was no room
)

// Statuses lists every Status.
var Statuses = []Status{Success, ApplicationError, DeveloperError, InternalError, Refused}

func (s Status) String() string {
	return [...]string{"success", "application error", "action developer error",
		"whisk internal error", "refused"}[s]
}

// A Call is one that has ended.
type Call struct {
	API      string
	ID       string // of its record, and of its trace
	Function string // NAMESPACE/NAME
	Kind     string // what it runs in
	Status   Status
	Why      string        // it did not succeed
	How      pool.Kind     // it came to its sandbox
	Ran      bool          // there
	Took     time.Duration // from accepting it until its answer was there
	Cold     *coldstart.Record
}

// MostFunctions bounds how many functions are counted by name: those that were called first and
// have not been deleted. The rest is counted as "other".
const MostFunctions = 64

// Metrics holds what is counted of calls. Cold starts are labelled by how they were made, so that
// simulated ones never count as real, and two ways to make them can be compared. Functions are
// counted by name as long as there are few.
type Metrics struct {
	coldStart   *prometheus.HistogramVec
	stage       *prometheus.HistogramVec
	coverage    *prometheus.HistogramVec
	activation  *prometheus.HistogramVec
	activations *prometheus.CounterVec

	tracer trace.Tracer // nil: nothing is traced
	traces ration

	mu        sync.RWMutex
	exists    map[string]func(name string) bool // by API
	functions map[named]*function               // at most MostFunctions
	others    map[string]*function              // by API
	swept     time.Time
	starts    map[made]*start // few: from what nodes say of themselves
}

// A named function is one of an API.
type named struct{ api, name string }

// A function holds the metric series of one function, so that its calls need not look them up.
type function struct {
	ended [5]prometheus.Counter // by Status
	took  map[pool.Kind]prometheus.Observer
}

// A made start is one that an API waited for, made in some way.
type made struct {
	api string
	metrics.Start
}

// A start is the series of one way to make cold starts, looked up once.
type start struct {
	labels          []string
	whole, coverage prometheus.Observer
	stages          sync.Map // prometheus.Observer by timeline.Stage, of those that occur
}

// New returns metrics that are registered, if there is a registry. The tracer takes cold starts;
// nil: none does.
func New(registry prometheus.Registerer, tracer trace.Tracer) (*Metrics, error) {
	perStart := append([]string{"api"}, metrics.StartLabels...)
	m := &Metrics{
		coldStart: metrics.Seconds("fastiov_cold_start_seconds",
			"Cold starts end to end: from accepting the request to the last byte of the answer leaving the sandbox, or, of a service, the first.",
			perStart...),
		stage: metrics.Seconds("fastiov_cold_start_stage_seconds",
			"What each stage takes of a cold start's end-to-end time, each instant given to the innermost stage.",
			append([]string{"stage"}, perStart...)...),
		coverage: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "fastiov_cold_start_coverage_ratio",
			Buckets: []float64{0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 1},
			Help:    "Share of a cold start's end-to-end time that some stage claims.",
		}, perStart),
		activation: metrics.Seconds("fastiov_activation_seconds",
			"Activations that ran, from accepting the request to the sandbox's reply being back at the invoker; of a service, requests until the first byte of their answer.",
			"api", "function", "start"),
		activations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fastiov_activations_total",
			Help: "Activations, and requests to services, by how they ended.",
		}, []string{"api", "function", "status"}),
		tracer: tracer, exists: map[string]func(string) bool{},
		functions: map[named]*function{}, others: map[string]*function{},
		starts: map[made]*start{},
	}
	for _, api := range APIs {
		m.others[api] = m.function(named{api, "other"})
	}
	if registry == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		m.coldStart, m.stage, m.coverage, m.activation, m.activations,
	} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Of has exists asked whether an API still has a function of that name, NAMESPACE/NAME.
func (m *Metrics) Of(api string, exists func(name string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.exists[api] = exists
}

func (m *Metrics) function(n named) *function {
	f := &function{took: map[pool.Kind]prometheus.Observer{}}
	for _, status := range Statuses {
		f.ended[status] = m.activations.WithLabelValues(n.api, n.name, status.String())
	}
	for _, start := range Starts {
		f.took[start] = m.activation.WithLabelValues(n.api, n.name, string(start))
	}
	return f
}

func (m *Metrics) of(n named) *function {
	m.mu.RLock()
	f := m.functions[n]
	m.mu.RUnlock()
	if f != nil {
		return f
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if f = m.functions[n]; f != nil {
		return f
	}
	if len(m.functions) == MostFunctions && time.Since(m.swept) > time.Second {
		m.sweep()
	}
	if len(m.functions) == MostFunctions {
		return m.others[n.api]
	}
	f = m.function(n)
	m.functions[n] = f
	return f
}

// sweep forgets the functions that have been deleted. Their series stay until their place is
// needed, so that Prometheus sees how they ended.
func (m *Metrics) sweep() {
	m.swept = time.Now()
	for n := range m.functions {
		if exists := m.exists[n.api]; exists == nil || exists(n.name) {
			continue
		}
		gone := prometheus.Labels{"api": n.api, "function": n.name}
		m.activations.DeletePartialMatch(gone)
		m.activation.DeletePartialMatch(gone)
		delete(m.functions, n)
	}
}

// Ended counts a call, and traces the cold start that it waited for.
func (m *Metrics) Ended(c *Call) {
	f := m.of(named{c.API, c.Function})
	f.ended[c.Status].Inc()
	var trace prometheus.Labels
	if m.trace(c) {
		trace = prometheus.Labels{"trace_id": c.ID}
	}
	if took := f.took[c.How]; took != nil && c.Ran {
		add(took, c.Took, trace)
	}
	cold := c.Cold
	if cold == nil || !cold.Answered {
		return
	}
	s := m.startOf(made{c.API,
		metrics.Start{Sandbox: cold.Driver, NetPath: cold.NetPath, FastIOV: cold.FastIOV}})
	add(s.whole, cold.End.Sub(cold.Begin), trace)
	s.coverage.Observe(cold.Coverage)
	for stage, spent := range cold.Stages {
		if o := m.during(s, stage); o != nil {
			add(o, time.Duration(spent*float64(time.Millisecond)), trace)
		}
	}
}

// startOf is the series of cold starts that were made that way.
func (m *Metrics) startOf(how made) *start {
	m.mu.RLock()
	s := m.starts[how]
	m.mu.RUnlock()
	if s != nil {
		return s
	}
	labels := append([]string{how.api}, how.Values()...)
	s = &start{labels: labels, whole: m.coldStart.WithLabelValues(labels...),
		coverage: m.coverage.WithLabelValues(labels...)}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.starts[how] = s
	return s
}

// during returns the series of a stage, or nil if there is no such stage here: a node of another
// version may know more.
func (m *Metrics) during(s *start, stage timeline.Stage) prometheus.Observer {
	if o, known := s.stages.Load(stage); known {
		return o.(prometheus.Observer)
	}
	if !slices.Contains(timeline.Order, stage) {
		return nil
	}
	o := m.stage.WithLabelValues(append([]string{string(stage)}, s.labels...)...)
	s.stages.Store(stage, o)
	return o
}

// add counts a time, with its trace as an exemplar where there is one.
func add(o prometheus.Observer, took time.Duration, trace prometheus.Labels) {
	if trace == nil {
		o.Observe(took.Seconds())
		return
	}
	o.(prometheus.ExemplarObserver).ObserveWithExemplar(took.Seconds(), trace)
}
