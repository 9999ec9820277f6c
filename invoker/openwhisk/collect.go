package openwhisk

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fastiov/fastiov/invoker/share"
)

// The bounds of an invoker, and the records that it lost, are read when metrics are asked for.
var (
	descBodies = prometheus.NewDesc("fastiov_body_bytes",
		"Memory for what callers send and calls that wait hold.", []string{"state"}, nil)
	descConnections = prometheus.NewDesc("fastiov_connections",
		"Connections to the OpenWhisk API, and how many more there may be.", []string{"state"}, nil)
	descRefused = prometheus.NewDesc("fastiov_refused_connections_total",
		"Connections that were closed at once, by the bound that they met.", []string{"bound"}, nil)
	descLost = prometheus.NewDesc("fastiov_lost_records_total",
		"Activation records that could be kept neither on disk nor in memory.", nil, nil)
	descBroken = prometheus.NewDesc("fastiov_store_broken",
		"1 while the store takes no writes, or another process has the invoker's name; else 0.",
		nil, nil)
)

// The values of their labels.
var (
	BodyStates       = []string{"held", "free"}
	ConnectionStates = []string{"open", "free"}
	ConnectionBounds = []string{"address", "all"}
)

// Describe implements prometheus.Collector.
func (a *API) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descBodies, descConnections, descRefused, descLost,
		descBroken} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (a *API) Collect(ch chan<- prometheus.Metric) {
	pair := func(d *prometheus.Desc, kind prometheus.ValueType, labels []string,
		first, second float64) {
		ch <- prometheus.MustNewConstMetric(d, kind, first, labels[0])
		ch <- prometheus.MustNewConstMetric(d, kind, second, labels[1])
	}
	held := a.bodies.Used()
	pair(descBodies, prometheus.GaugeValue, BodyStates, float64(held),
		float64(a.bodies.Size()-held))
	var most, open int64
	var refused share.Refused
	if a.cfg.Connections != nil {
		most, open, refused = a.cfg.Connections.Counts()
	}
	pair(descConnections, prometheus.GaugeValue, ConnectionStates, float64(open),
		float64(most-open))
	pair(descRefused, prometheus.CounterValue, ConnectionBounds, float64(refused.Address),
		float64(refused.All))
	ch <- prometheus.MustNewConstMetric(descLost, prometheus.CounterValue,
		float64(a.cfg.Store.Lost()))
	broken := 0.0
	if a.cfg.Store.Broken() != nil {
		broken = 1
	}
	ch <- prometheus.MustNewConstMetric(descBroken, prometheus.GaugeValue, broken)
}
