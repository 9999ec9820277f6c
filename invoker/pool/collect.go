package pool

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// What Prometheus finds when it asks a pool.
var (
	descWaiting = described("fastiov_pool_waiting_jobs", "reason",
		"Jobs that wait for a sandbox, by what they wait for.")
	descSandboxes = described("fastiov_pool_sandboxes", "phase",
		"Sandboxes by phase, on all nodes; stem cells that idle as stem.")
	descDecisions = described("fastiov_pool_decisions_total", "kind",
		"Decisions by kind; warm, warming, prewarm and cold are how jobs got their sandbox.")
	descNodes = described("fastiov_pool_nodes", "state", "Nodes by state.")
)

func described(name, label, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{label}, nil)
}

// Reasons holds the label's value for each Lack.
var Reasons = map[Lack]string{
	Placeable: "placeable", NoNode: "node", NoVF: "vf", NoPlace: "place", NoMemory: "memory",
	Reserved: "reserved", MakesRoom: "claim", AtMost: "max", Resting: "rest",
}

// Phases returns the phases of a sandbox, and "stem" for a stem cell that idles.
func Phases() []string {
	names := []string{"stem"}
	for _, p := range phases {
		names = append(names, string(p))
	}
	return names
}

// NodeStates lists the states of a node; one that is out of reach is away.
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
		ch <- prometheus.MustNewConstMetric(
			descDecisions, prometheus.CounterValue, float64(n), string(kind))
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
