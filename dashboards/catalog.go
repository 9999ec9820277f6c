package dashboards

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/telemetry"
	"github.com/fastiov/fastiov/node-agent/agent"
	"github.com/fastiov/fastiov/node-agent/api/metrics"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/netpath/bridge"
	"github.com/fastiov/fastiov/node-agent/netpath/scon"
	netvf "github.com/fastiov/fastiov/node-agent/netpath/vf"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// A Metric is one line of the list of metrics.
type Metric struct {
	Name, Type, Unit, Help string
	Labels                 []string
}

// Metrics returns all metrics of fastiov itself, by name. Each process also has go_* and process_*.
func Metrics() []Metric {
	var seen recorder
	_, err := openwhisk.NewMetrics(&seen)
	if err == nil {
		_, err = telemetry.New(&seen, nil)
	}
	if err != nil {
		panic(err) // a recorder accepts everything
	}
	agent.NewMetrics(&seen)
	seen.MustRegister((*pool.Pool)(nil), (*bus.Bus)(nil), (*openwhisk.API)(nil),
		(*agent.Agent)(nil),
		metrics.Build(""))
	var all []Metric
	for _, c := range seen {
		all = append(all, described(c)...)
	}
	slices.SortFunc(all, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// A recorder is a registry that only lists its collectors.
type recorder []prometheus.Collector

func (r *recorder) Register(c prometheus.Collector) error {
	*r = append(*r, c)
	return nil
}

func (r *recorder) MustRegister(all ...prometheus.Collector) { *r = append(*r, all...) }

func (r *recorder) Unregister(prometheus.Collector) bool { return false }

// descText matches a Desc's String, which is the only way to read a Desc.
var descText = regexp.MustCompile(
	`^Desc\{fqName: "(\w+)", help: ("(?:[^"\\]|\\.)*"), .*constLabels: \{(.*?)\}, variableLabels: \{(.*?)\}\}$`)

func described(c prometheus.Collector) []Metric {
	ch := make(chan *prometheus.Desc)
	go func() {
		c.Describe(ch)
		close(ch)
	}()
	var all []Metric
	for d := range ch {
		m := descText.FindStringSubmatch(d.String())
		if m == nil {
			panic("a metric describes itself in another way than it did: " + d.String())
		}
		help, err := strconv.Unquote(m[2])
		if err != nil {
			panic(err)
		}
		one := Metric{Name: m[1], Help: help, Type: typeOf(c, m[1]), Unit: unitOf(m[1])}
		for constant := range strings.SplitSeq(m[3], ",") {
			if name, _, is := strings.Cut(constant, "="); is {
				one.Labels = append(one.Labels, name)
			}
		}
		if m[4] != "" {
			one.Labels = append(one.Labels, strings.Split(m[4], ",")...)
		}
		all = append(all, one)
	}
	return all
}

// typeOf returns the type of the metric that c collects under that name. A metric that is collected
// on demand is a counter if its name says so, otherwise a gauge.
func typeOf(c prometheus.Collector, name string) string {
	if _, is := c.(*prometheus.HistogramVec); is {
		return "histogram"
	}
	if strings.HasSuffix(name, "_total") {
		return "counter"
	}
	return "gauge"
}

func unitOf(name string) string {
	for _, unit := range []string{"seconds", "bytes", "ratio"} {
		if strings.Contains(name, "_"+unit) {
			return unit
		}
	}
	return ""
}

// Values returns all values that a label can have, or what bounds their number.
func Values(metric, label string) (all []string, bound string) {
	if all := finite[metric+" "+label]; all != nil {
		return all, ""
	}
	if all := finite[label]; all != nil {
		return all, ""
	}
	return nil, bounded[label]
}

var finite = map[string][]string{
	"api":     telemetry.APIs,
	"stage":   texts(timeline.Order),
	"sandbox": {"qemu", "bare", "containerd", "sim"},
	"netpath": {netvf.Kind, bridge.Kind, "none"},
	"start":   texts(telemetry.Starts),
	"status":  texts(telemetry.Statuses),
	"limit":   openwhisk.Limits,
	"kind":    texts(pool.Kinds),
	"phase":   pool.Phases(),
	"method": {"Start", "Init", "Run", "Pause", "Resume", "Stop", "Status", "Drain", "Report",
		"Publish"},
	"code":   grpcCodes(),
	"task":   {"prepare", "reset"},
	"result": {"ok", "failed"},
	"source": agent.ImageSources,

	"route":                                     openwhisk.Routes,
	"bound":                                     openwhisk.ConnectionBounds,
	"fastiov_denied_requests_total code":        openwhisk.DeniedCodes,
	"fastiov_body_bytes state":                  openwhisk.BodyStates,
	"fastiov_connections state":                 openwhisk.ConnectionStates,
	"fastiov_pool_waiting_jobs reason":          slices.Sorted(maps.Values(pool.Reasons)),
	"fastiov_pool_nodes state":                  pool.NodeStates,
	"fastiov_node_waiting_starts reason":        texts(startup.Lacks),
	"fastiov_node_start_failures_total reason":  {"refused", "failed"},
	"fastiov_node_image_pulls_total result":     agent.PullResults,
	"fastiov_node_image_pull_seconds stage":     agent.PullStages,
	"fastiov_node_sandboxes state":              agent.States,
	"fastiov_node_memory_bytes state":           {"reserved", "free"},
	"fastiov_node_vfs state":                    texts(vf.States),
	"fastiov_node_express_packets_total path":   scon.Paths,
	"fastiov_node_express_permitted connection": agent.Connections,
}

var bounded = map[string]string{
	"function": fmt.Sprintf(
		"NAMESPACE/NAME of at most %d functions and services, those called first that still exist, and `other`",
		telemetry.MostFunctions),
	"fastiov": "at most 39: a named arm, as `none`, `all` and `tap`, or axes of --fastiov, as in l=bus,r=1",
	"vf":      "the address of each VF of the node",
	"version": "one for each process",
}

func texts[T any](of []T) (all []string) {
	for _, v := range of {
		all = append(all, fmt.Sprint(v))
	}
	return all
}

func grpcCodes() (all []string) {
	for c := codes.OK; c <= codes.Unauthenticated; c++ {
		all = append(all, c.String())
	}
	return all
}

//go:embed metrics.md
var metricsHead string

// MetricsPage returns docs/metrics.md: its head, then every metric.
func MetricsPage() string {
	var b strings.Builder
	b.WriteString(metricsHead)
	for _, m := range Metrics() {
		fmt.Fprintf(&b, "## %s\n%s\n\n- type: %s\n", m.Name, m.Help, m.Type)
		if m.Unit != "" {
			fmt.Fprintf(&b, "- unit: %s\n", m.Unit)
		}
		if len(m.Labels) > 0 {
			b.WriteString("\n| label | values |\n|---|---|\n")
		}
		for _, label := range m.Labels {
			all, bound := Values(m.Name, label)
			if all != nil {
				bound = fmt.Sprintf("%d: `%s`", len(all), strings.Join(all, "`, `"))
			}
			fmt.Fprintf(&b, "| `%s` | %s |\n", label, bound)
		}
		b.WriteString("\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}
