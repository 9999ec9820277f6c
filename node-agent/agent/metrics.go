package agent

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fastiov/fastiov/node-agent/api/metrics"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/oci"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// Metrics holds what the agent counts as it happens; collect.go has what is read when Prometheus
// asks.
type Metrics struct {
	stages   *prometheus.HistogramVec
	failures *prometheus.CounterVec
	deaths   prometheus.Counter
	calls    *prometheus.HistogramVec
	resets   *prometheus.HistogramVec
	images   *prometheus.CounterVec
	pulls    *prometheus.CounterVec
	pulling  *prometheus.HistogramVec
}

// PullStages lists what of a pull is timed: the whole, and its stages.
var PullStages = append([]string{"total"}, image.Stages...)

// PullResults lists the results that a pull of a container image can have.
var PullResults = append([]string{"ok", "failed"}, pullReasons()...)

func pullReasons() (all []string) {
	for _, reason := range oci.Reasons {
		all = append(all, string(reason))
	}
	return all
}

// ImageSources lists the places that bytes of images come from.
var ImageSources = []string{"debian", "registry"}

// NewMetrics registers the agent's metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		stages: metrics.Seconds("fastiov_node_stage_seconds",
			"Length of one stage of a cold start, as begun and ended; stages overlap.",
			append([]string{"stage"}, metrics.StartLabels...)...),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fastiov_node_start_failures_total",
			Help: "Cold starts that were refused for want of room, or failed.",
		}, []string{"reason"}),
		deaths: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fastiov_node_sandbox_deaths_total",
			Help: "Started sandboxes that ended without being stopped.",
		}),
		calls: metrics.Seconds("fastiov_node_call_seconds",
			"Calls of the node API, by method and gRPC status code.", "method", "code"),
		resets: metrics.Seconds("fastiov_node_vf_reset_seconds",
			"Times to make a VF ready: to prepare a new one, or to reset one that came back.",
			"task", "result"),
		images: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fastiov_node_image_bytes_total",
			Help: "Bytes fetched to make images: packages from Debian's mirror, container images from registries.",
		}, []string{"source"}),
		pulls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fastiov_node_image_pulls_total",
			Help: "Pulls of container images that ended: well, for a reason of the image or its registry, or by a failure of the node.",
		}, []string{"result"}),
		pulling: metrics.Seconds("fastiov_node_image_pull_seconds",
			"Times that pulls took which ended well, and their stages, which overlap.", "stage"),
	}
	for _, stage := range PullStages {
		m.pulling.WithLabelValues(stage)
	}
	for _, result := range PullResults {
		m.pulls.WithLabelValues(result)
	}
	for _, reason := range []string{"refused", "failed"} {
		m.failures.WithLabelValues(reason)
	}
	for _, source := range ImageSources {
		m.images.WithLabelValues(source)
	}
	reg.MustRegister(m.stages, m.failures, m.deaths, m.calls, m.resets, m.images, m.pulls,
		m.pulling)
	return m
}

func (m *Metrics) started(how metrics.Start, spans []timeline.Span) {
	labels := append([]string{""}, how.Values()...)
	for _, s := range spans {
		labels[0] = string(s.Stage)
		m.stages.WithLabelValues(labels...).Observe(s.End.Sub(s.Begin).Seconds())
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

// settled counts preparations and resets of a VF that have ended.
func (m *Metrics) settled(jobs []vf.Settled) {
	for _, job := range jobs {
		task, result := "reset", "ok"
		if job.From == vf.Preparing {
			task = "prepare"
		}
		if job.Err != nil {
			result = "failed"
		}
		m.resets.WithLabelValues(task, result).Observe(job.Took.Seconds())
	}
}

// Fetched takes bytes that an image was made of, as image.Cache tells them.
func (m *Metrics) Fetched(source string, bytes int64) {
	m.images.WithLabelValues(source).Add(float64(bytes))
}

// Pulled takes the end of a pull, as image.Cache tells it.
func (m *Metrics) Pulled(r image.Report) {
	result := "ok"
	var refused *oci.Refusal
	switch {
	case errors.As(r.Err, &refused):
		result = string(refused.Reason)
	case r.Err != nil:
		result = "failed"
	}
	m.pulls.WithLabelValues(result).Inc()
	if r.Err != nil {
		return
	}
	m.pulling.WithLabelValues("total").Observe(r.Took.Seconds())
	for stage, took := range r.Stages {
		m.pulling.WithLabelValues(stage).Observe(took.Seconds())
	}
}
