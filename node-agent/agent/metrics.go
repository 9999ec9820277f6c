package agent

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// Metrics are the agent's own: what a cold start spent in which stage, how starts fail, what state the VFs are in.
type Metrics struct {
	stages   *prometheus.HistogramVec
	failures *prometheus.CounterVec
	deaths   prometheus.Counter
}

// NewMetrics registers the agent's metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "fastiov_node_stage_seconds", Help: "Length of one stage of a cold start, as begun and ended; stages overlap.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 20), // 0.1 ms to 52 s
		}, []string{"stage", "sandbox"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fastiov_node_start_failures_total", Help: "Cold starts that were refused for want of room, or failed.",
		}, []string{"reason"}),
		deaths: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fastiov_node_sandbox_deaths_total", Help: "Started sandboxes that ended without being stopped.",
		}),
	}
	reg.MustRegister(m.stages, m.failures, m.deaths)
	return m
}

func (m *Metrics) started(driver string, spans []timeline.Span) {
	for _, s := range spans {
		m.stages.WithLabelValues(string(s.Stage), driver).Observe(s.End.Sub(s.Begin).Seconds())
	}
}

func (m *Metrics) startFailed(err error) {
	reason := "failed"
	var refused *startup.Refused
	if errors.As(err, &refused) {
		reason = "refused"
	}
	m.failures.WithLabelValues(reason).Inc()
}

func (m *Metrics) died() { m.deaths.Inc() }

// poolCollector reads the VF pool when Prometheus asks.
type poolCollector struct {
	pool   interface{ Snapshot() []vf.Status }
	states *prometheus.Desc
	resets *prometheus.Desc
}

// CollectPool registers gauges of the VF pool.
func CollectPool(reg prometheus.Registerer, pool interface{ Snapshot() []vf.Status }) {
	reg.MustRegister(&poolCollector{
		pool:   pool,
		states: prometheus.NewDesc("fastiov_node_vfs", "Virtual functions by state.", []string{"state"}, nil),
		resets: prometheus.NewDesc("fastiov_node_vf_reset_failures_total", "Preparations and resets that failed, by VF.", []string{"vf"}, nil),
	})
}

func (c *poolCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.states
	ch <- c.resets
}

func (c *poolCollector) Collect(ch chan<- prometheus.Metric) {
	count := map[vf.State]int{}
	for _, s := range vf.States {
		count[s] = 0
	}
	for _, v := range c.pool.Snapshot() {
		count[v.State]++
		ch <- prometheus.MustNewConstMetric(c.resets, prometheus.CounterValue, float64(v.ResetFailures), v.BDF)
	}
	for state, n := range count {
		ch <- prometheus.MustNewConstMetric(c.states, prometheus.GaugeValue, float64(n), string(state))
	}
}
