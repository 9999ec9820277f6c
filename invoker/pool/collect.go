package pool

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// What Prometheus finds when it asks a pool.
var (
	descWaiting   = prometheus.NewDesc("fastiov_pool_waiting_jobs", "Jobs that wait for a sandbox, by what they wait for.", []string{"reason"}, nil)
	descSandboxes = prometheus.NewDesc("fastiov_pool_sandboxes", "Sandboxes by phase, on all nodes; stem cells that idle as stem.", []string{"phase"}, nil)
	descDecisions = prometheus.NewDesc("fastiov_pool_decisions_total", "Decisions by kind; warm, warming, prewarm and cold are how jobs got their sandbox.", []string{"kind"}, nil)
	descNodes     = prometheus.NewDesc("fastiov_pool_nodes", "Nodes by state.", []string{"state"}, nil)
)

// Reasons are what a label calls each Lack.
var Reasons = map[Lack]string{
	Placeable: "placeable", NoNode: "node", NoVF: "vf", NoPlace: "place", NoMemory: "memory",
	Reserved: "reserved", MakesRoom: "claim",
	AtMost: "max",
}

// Phases are those of a sandbox, and what a stem cell is in that idles.
func Phases() []string {
	names := []string{"stem"}
	for _, p := range phases {
		names = append(names, string(p))
	}
	return names
}

// NodeStates are how a node may be: away is one that is out of reach.
var NodeStates = []string{"up", "draining", "away"}

// Describe implements prometheus.Collector.
func (p *Pool) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descWaiting, descSandboxes, descDecisions, descNodes} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (p *Pool) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value int, label string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), label)
	}
	shot := p.Snapshot()
	for lack, reason := range Reasons {
		gauge(descWaiting, shot.Queue[lack], reason)
	}
	for phase, n := range shot.Boxes {
		gauge(descSandboxes, n, phase)
	}
	for kind, n := range shot.Decisions {
		ch <- prometheus.MustNewConstMetric(descDecisions, prometheus.CounterValue, float64(n), string(kind))
	}
	nodes := map[string]int{}
	for _, n := range shot.Nodes {
		state := n.State // or the reason why it is out of reach
		if !slices.Contains(NodeStates, state) {
			state = "away"
		}
		nodes[state]++
	}
	for _, state := range NodeStates {
		gauge(descNodes, nodes[state], state)
	}
}
