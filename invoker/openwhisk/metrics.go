package openwhisk

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api/metrics"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// Metrics holds what the invoker counts. Cold starts are labelled by how they were made, so that
// simulated ones never count as real, and two ways to make them can be compared. Functions are
// counted by name as long as there are few. A nil *Metrics counts nothing.
type Metrics struct {
	coldStart   *prometheus.HistogramVec
	stage       *prometheus.HistogramVec
	coverage    *prometheus.HistogramVec
	activation  *prometheus.HistogramVec
	activations *prometheus.CounterVec
	throttled   *prometheus.CounterVec
	denied      *prometheus.CounterVec

	exists    func(name string) bool
	mu        sync.RWMutex
	functions map[string]*function // by name; at most MostFunctions
	others    *function
	swept     time.Time
	starts    map[metrics.Start]*start // few: from what nodes say of themselves
}

// MostFunctions bounds how many functions are counted by name: those that were called first and
// have not been deleted. The rest is counted as "other".
const MostFunctions = 64

// Starts lists the ways to a sandbox by which activations are labelled.
var Starts = []pool.Kind{pool.Warm, pool.Warming, pool.Prewarm, pool.Cold}

// A function holds the metric series of one action, so that its calls need not look them up.
type function struct {
	ended   [4]prometheus.Counter // by activation.Status
	refused prometheus.Counter
	took    map[pool.Kind]prometheus.Observer
}

// A start is the series of one way to make cold starts, looked up once.
type start struct {
	labels          []string
	whole, coverage prometheus.Observer
	stages          sync.Map // prometheus.Observer by timeline.Stage, of those that occur
}

// NewMetrics registers the invoker's metrics. exists reports whether there still is a function of
// that name, NAMESPACE/NAME.
func NewMetrics(registry prometheus.Registerer, exists func(name string) bool) (*Metrics, error) {
	m := &Metrics{
		exists: exists,
		coldStart: metrics.Seconds("fastiov_cold_start_seconds",
			"Cold starts end to end: from accepting the request to the last byte of the answer leaving the sandbox.",
			metrics.StartLabels...),
		stage: metrics.Seconds("fastiov_cold_start_stage_seconds",
			"What each stage takes of a cold start's end-to-end time, each instant given to the innermost stage.",
			append([]string{"stage"}, metrics.StartLabels...)...),
		coverage: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "fastiov_cold_start_coverage_ratio",
			Buckets: []float64{0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 1},
			Help:    "Share of a cold start's end-to-end time that some stage claims.",
		}, metrics.StartLabels),
		activation: metrics.Seconds("fastiov_activation_seconds",
			"Activations that ran, from accepting the request to the sandbox's reply being back at the invoker.",
			"function", "start"),
		activations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fastiov_activations_total", Help: "Activations by how they ended.",
		}, []string{"function", "status"}),
		throttled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fastiov_throttled_requests_total",
			Help: "Requests that were refused with 429 or 413, by the limit that they met.",
		}, []string{"limit"}),
		denied: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fastiov_denied_requests_total",
			Help: "Requests that were refused with 401 or 403: by no key that opens, or for what it does not open.",
		}, []string{"route", "code"}),
		functions: map[string]*function{},
		starts:    map[metrics.Start]*start{},
	}
	m.others = m.function("other")
	for _, limit := range Limits {
		m.throttled.WithLabelValues(limit)
	}
	for _, route := range Routes {
		for _, code := range DeniedCodes {
			m.denied.WithLabelValues(route, code)
		}
	}
	for _, c := range []prometheus.Collector{
		m.coldStart, m.stage, m.coverage, m.activation, m.activations, m.throttled, m.denied,
	} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) function(name string) *function {
	f := &function{refused: m.activations.WithLabelValues(name, "refused"),
		took: map[pool.Kind]prometheus.Observer{}}
	for _, status := range activation.Statuses {
		f.ended[status] = m.activations.WithLabelValues(name, status.String())
	}
	for _, start := range Starts {
		f.took[start] = m.activation.WithLabelValues(name, string(start))
	}
	return f
}

func (m *Metrics) of(name string) *function {
	m.mu.RLock()
	f := m.functions[name]
	m.mu.RUnlock()
	if f != nil {
		return f
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if f = m.functions[name]; f != nil {
		return f
	}
	if len(m.functions) == MostFunctions && time.Since(m.swept) > time.Second {
		m.sweep()
	}
	if len(m.functions) == MostFunctions {
		return m.others
	}
	f = m.function(name)
	m.functions[name] = f
	return f
}

// sweep forgets the functions that have been deleted. Their series stay until their place is
// needed, so that Prometheus sees how they ended.
func (m *Metrics) sweep() {
	m.swept = time.Now()
	for name := range m.functions {
		if !m.exists(name) {
			m.activations.DeletePartialMatch(prometheus.Labels{"function": name})
			m.activation.DeletePartialMatch(prometheus.Labels{"function": name})
			delete(m.functions, name)
		}
	}
}

// observe counts an activation. traced: its trace, which has its id, can be looked up.
func (m *Metrics) observe(end *completion, traced bool) {
	if m == nil {
		return
	}
	r, f := end.record, m.of(end.record.Path)
	if end.refused != nil {
		f.refused.Inc()
	} else {
		f.ended[r.Response.Status].Inc()
	}
	var trace prometheus.Labels
	if traced {
		trace = prometheus.Labels{"trace_id": r.ID}
	}
	if took := f.took[end.how]; took != nil && end.ran {
		add(took, end.took, trace)
	}
	cold := r.Cold
	if cold == nil || !cold.Answered {
		return
	}
	s := m.made(metrics.Start{Sandbox: cold.Driver, NetPath: cold.NetPath, FastIOV: cold.FastIOV})
	add(s.whole, cold.End.Sub(cold.Begin), trace)
	s.coverage.Observe(cold.Coverage)
	for stage, spent := range cold.Stages {
		if o := m.during(s, stage); o != nil {
			add(o, time.Duration(spent*float64(time.Millisecond)), trace)
		}
	}
}

// made is the series of cold starts that were made that way.
func (m *Metrics) made(how metrics.Start) *start {
	m.mu.RLock()
	s := m.starts[how]
	m.mu.RUnlock()
	if s != nil {
		return s
	}
	labels := how.Values()
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

// Limits lists the limits that requests are refused for.
var Limits = []string{
	access.CallsPerMinute, access.CallsAtOnce, access.FiresPerMinute, access.ChangesPerMinute,
	access.ReadsPerMinute, access.BytesAtOnce, access.BytesOfAll, "waiting", "size", "quota",
}

// Routes lists the doors that requests come by: the API, web actions, and the live page.
var Routes = []string{"api", "web", "page"}

// DeniedCodes lists the statuses of requests that are denied.
var DeniedCodes = []string{"401", "403"}

// refuse counts a request that was answered with an error.
func (m *Metrics) refuse(route string, err error) {
	if m == nil {
		return
	}
	if status := statusOf(err); status == http.StatusUnauthorized ||
		status == http.StatusForbidden {
		m.denied.WithLabelValues(route, strconv.Itoa(status)).Inc()
		return
	}
	var tooMany *access.TooMany
	var refusal *entity.Refusal
	var full *overfull
	switch {
	case errors.As(err, &full):
		m.throttled.WithLabelValues("quota").Inc()
	case errors.As(err, &tooMany):
		m.throttled.WithLabelValues(tooMany.Limit).Inc()
	case !errors.As(err, &refusal):
	case refusal.Status == http.StatusTooManyRequests:
		m.throttled.WithLabelValues("waiting").Inc()
	case refusal.Status == http.StatusRequestEntityTooLarge:
		m.throttled.WithLabelValues("size").Inc()
	}
}
