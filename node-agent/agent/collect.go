package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// The metrics that are made when Prometheus asks. Those of VFs have series only on a node that has
// VFs, and those of the express path where its bridge has one.
var (
	descSandboxes = prometheus.NewDesc("fastiov_node_sandboxes", "Sandboxes by state.",
		[]string{"state"}, nil)
	descMemory = prometheus.NewDesc("fastiov_node_memory_bytes",
		"Memory that sandboxes may have: reserved, or free.", []string{"state"}, nil)
	descWaiting = prometheus.NewDesc("fastiov_node_waiting_starts",
		"Starts that wait in the node, by what the first of them waits for.",
		[]string{"reason"}, nil)
	descRooms = prometheus.NewDesc("fastiov_node_rooms_made_late_total",
		"Rooms for VMMs that a start had to make, as none was ready.", nil, nil)
	descVFs = prometheus.NewDesc("fastiov_node_vfs", "Virtual functions by state.",
		[]string{"state"}, nil)
	descFailures = prometheus.NewDesc("fastiov_node_vf_reset_failures_total",
		"Preparations and resets that failed, by VF.", []string{"vf"}, nil)
	descFaults = prometheus.NewDesc("fastiov_node_vf_faults_total",
		"Errors that the users of a VF reported, by VF.", []string{"vf"}, nil)
	descPackets = prometheus.NewDesc("fastiov_node_express_packets_total",
		"Packets of the bridge's ports and uplinks by their path: express, or why they were regular.",
		[]string{"path"}, nil)
	descPermitted = prometheus.NewDesc("fastiov_node_express_permitted",
		"1 where rules let packets go express, by whether their connection has been answered.",
		[]string{"connection"}, nil)
	descLease = prometheus.NewDesc("fastiov_node_vf_lease_age_seconds",
		"How long ago a VF was leased, by VF; only of those that are.", []string{"vf"}, nil)
)

// Describe implements prometheus.Collector.
func (a *Agent) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descSandboxes, descMemory, descWaiting, descRooms, descVFs,
		descFailures, descFaults, descLease, descPackets, descPermitted} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (a *Agent) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, label string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, label)
	}
	count := map[string]int{}
	a.mu.Lock()
	for _, e := range a.sandboxes {
		count[e.state]++
	}
	a.mu.Unlock()
	for _, state := range States {
		gauge(descSandboxes, float64(count[state]), state)
	}
	const mebi = 1 << 20
	used, total, waiting := a.Starter.Admission.Usage()
	gauge(descMemory, float64(used)*mebi, "reserved")
	gauge(descMemory, float64(total-used)*mebi, "free")
	first := a.Starter.Admission.Lack()
	for _, lack := range startup.Lacks {
		n := 0
		if lack == first {
			n = waiting
		}
		gauge(descWaiting, float64(n), string(lack))
	}
	late := int64(0) // 0: where a sandbox is not a process, it needs no room
	if c, ok := a.Starter.Driver.(confiner); ok {
		late = c.MadeOnPath()
	}
	ch <- prometheus.MustNewConstMetric(descRooms, prometheus.CounterValue, float64(late))
	if a.VFs != nil {
		collectVFs(ch, gauge, a.VFs.Snapshot(), time.Now())
	}
	if a.Express != nil {
		a.collectExpress(ch, gauge)
	}
}

func (a *Agent) collectExpress(ch chan<- prometheus.Metric,
	gauge func(*prometheus.Desc, float64, string)) {
	now, err := a.Express()
	if err != nil {
		a.Log.Error("the express path tells nothing", "err", err)
		return
	}
	for path, n := range now.Packets {
		ch <- prometheus.MustNewConstMetric(descPackets, prometheus.CounterValue, float64(n), path)
	}
	for i, is := range []bool{now.Answered, now.Others} {
		value := 0.0
		if is {
			value = 1
		}
		gauge(descPermitted, value, Connections[i])
	}
}

// Connections holds what the rules of the express path tell apart.
var Connections = []string{"answered", "other"}

func collectVFs(ch chan<- prometheus.Metric, gauge func(*prometheus.Desc, float64, string),
	vfs []vf.Status, now time.Time) {
	count := map[vf.State]int{}
	for _, v := range vfs {
		count[v.State]++
		ch <- prometheus.MustNewConstMetric(descFailures, prometheus.CounterValue,
			float64(v.ResetFailures), v.BDF)
		ch <- prometheus.MustNewConstMetric(descFaults, prometheus.CounterValue,
			float64(v.Faults), v.BDF)
		if v.State == vf.Leased {
			gauge(descLease, now.Sub(v.Since).Seconds(), v.BDF)
		}
	}
	for _, state := range vf.States {
		gauge(descVFs, float64(count[state]), string(state))
	}
}
