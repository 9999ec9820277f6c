// Package metrics holds the common parts of all processes' metrics: one layout of buckets, the
// labels of cold starts, the version, and the page that Prometheus reads.
//
// A metric is named fastiov_SUBJECT_UNIT, in base units; those of a node agent begin with
// fastiov_node_. docs/metrics.md lists all of them, and for every label how many values it can
// have.
package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Buckets holds the bounds of every histogram of times, 125 µs to 131 s, each twice the one before.
// With one layout any two histograms can be compared.
var Buckets = prometheus.ExponentialBuckets(0.000125, 2, 21)

// Seconds returns a histogram of times. Prometheus may read it by its classic buckets or, if it
// asks for them, by native ones.
func Seconds(name, help string, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: Buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160,
		NativeHistogramMinResetDuration: time.Hour,
		NativeHistogramMaxExemplars:     -1, // those of the classic buckets are taken for both
	}, labels)
}

// A Start holds the labels of cold starts, so that two ways to make them can be compared.
type Start struct {
	Sandbox string // the driver: qemu, bare or sim
	NetPath string // how the sandbox reaches the network: vf or none
	FastIOV string // which of FastIOV's optimisations it was made with, by the name of their set
}

// StartLabels lists the labels that Start fills.
var StartLabels = []string{"sandbox", "netpath", "fastiov"}

// Values returns the values of StartLabels.
func (s Start) Values(more ...string) []string {
	return append([]string{s.Sandbox, s.NetPath, s.FastIOV}, more...)
}

// Build says which version of fastiov counts, so that two versions can be compared.
func Build(version string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fastiov_build_info", Help: "1, by the version that counts here.",
		ConstLabels: prometheus.Labels{"version": version},
	}, func() float64 { return 1 })
}

// Page serves registry, and the metrics that others have beside it, in whichever format Prometheus
// asks for: exemplars need OpenMetrics, native histograms its protobuf. If one of the others does
// not answer, it serves the rest.
func Page(registry *prometheus.Registry, others ...prometheus.Gatherer) http.Handler {
	all := append(prometheus.Gatherers{registry}, others...)
	return promhttp.HandlerFor(all, promhttp.HandlerOpts{
		Registry: registry, EnableOpenMetrics: true, ErrorHandling: promhttp.ContinueOnError,
	})
}
