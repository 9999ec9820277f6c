package openwhisk

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fastiov/fastiov/invoker/activation"
)

// metrics is what the invoker counts. The driver label keeps simulated cold starts apart from real ones.
type metrics struct {
	coldStart   *prometheus.HistogramVec
	stage       *prometheus.HistogramVec
	coverage    *prometheus.HistogramVec
	activations *prometheus.CounterVec
	ended       [4]prometheus.Counter // of activations, by status
	refused     prometheus.Counter
}

func newMetrics(registry prometheus.Registerer, depth func() int) (*metrics, error) {
	seconds := prometheus.ExponentialBuckets(0.001, 2, 18) // 1 ms to 131 s
	m := &metrics{
		coldStart: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "fastiov_cold_start_seconds", Buckets: seconds, NativeHistogramBucketFactor: 1.1,
			Help: "Cold starts end to end: from accepting the request to the last byte of the answer leaving the sandbox.",
		}, []string{"driver"}),
		stage: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "fastiov_cold_start_stage_seconds", Buckets: seconds, NativeHistogramBucketFactor: 1.1,
			Help: "What each stage takes of a cold start's end-to-end time, each instant given to the innermost stage.",
		}, []string{"driver", "stage"}),
		coverage: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "fastiov_cold_start_coverage_ratio", Buckets: []float64{0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 1},
			Help: "Share of a cold start's end-to-end time that some stage claims.",
		}, []string{"driver"}),
		activations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fastiov_activations_total", Help: "Activations by how they ended.",
		}, []string{"status"}),
	}
	for _, status := range activation.Statuses {
		m.ended[status] = m.activations.WithLabelValues(status.String())
	}
	m.refused = m.activations.WithLabelValues("refused")
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fastiov_queue_depth", Help: "Activations that wait in the invoker for a sandbox.",
	}, func() float64 { return float64(depth()) })
	for _, collector := range []prometheus.Collector{m.coldStart, m.stage, m.coverage, m.activations, waiting} {
		if err := registry.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) observe(r *activation.Record, refused bool) {
	if refused {
		m.refused.Inc()
	} else {
		m.ended[r.Response.Status].Inc()
	}
	cold := r.Cold
	if cold == nil || !cold.Answered {
		return
	}
	m.coldStart.WithLabelValues(cold.Driver).Observe(cold.End.Sub(cold.Begin).Seconds())
	m.coverage.WithLabelValues(cold.Driver).Observe(cold.Coverage)
	for stage, spent := range cold.Stages {
		m.stage.WithLabelValues(cold.Driver, string(stage)).Observe(spent / 1000)
	}
}
