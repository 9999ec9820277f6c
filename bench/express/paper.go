package express

import (
	"fmt"
	"strings"
)

// A beside is a figure of the paper's, and the same of this result.
type beside struct{ What, Paper, Ours string }

// beside returns the paper's figures that there is data for. Throughput is that of one CPU which is
// busy, as the paper's is.
func (r *Result) beside() (all []beside) {
	throughput := func(c Cell) float64 { return 1 / c.CPUNs.Median }
	for _, f := range []struct {
		what, paper, loads string
		arm, to            string
		value              func(Cell) float64
	}{
		{"TCP, throughput of a container to native's, mean of sizes", "−40 %", "tcp-", Bridge,
			Native, throughput},
		{"the same of SCON to native's", "−29 %", "tcp-", Express, Native, throughput},
		{"the same of SCON to a container's", "+20 %", "tcp-", Express, Bridge, throughput},
		{"UDP, throughput of SCON to a container's, mean of sizes", "+31 %", "udp-", Express,
			Bridge, throughput},
		{"TCP, softirq of SCON to a container's, mean of sizes", "−19 % of the CPU", "tcp-",
			Express, Bridge, soft},
		{"UDP, softirq of SCON to a container's, mean of sizes", "−33 % of the CPU", "udp-",
			Express, Bridge, soft},
		{"TCP of 64 B, time of a message of a container to native's", "+99 %", "tcp-64", Bridge,
			Native, cost},
		{"the same of SCON to native's", "+20 %", "tcp-64", Express, Native, cost},
		{"the same of SCON to a container's", "−43 %", "tcp-64", Express, Bridge, cost},
		{"latency of SCON to a container's, mean of sizes", "−25 % (average)", "rr-tcp-", Express,
			Bridge, half},
		{"the same, 99th percentile", "−32 %", "rr-tcp-", Express, Bridge, tail},
		{"flows of things, 99th percentile of SCON to a container's", "−20 %", "flows", Express,
			Bridge, tail},
		{"HTTP, CPU time of SCON to a container's", "−19 %", "http", Express, Bridge, cost},
		{"HTTP, latency of a container to native's", "+1325 % (at the limit of its CPU)", "http",
			Bridge, Native, half},
		{"the same of SCON to native's", "+31 %", "http", Express, Native, half},
		{"MQTT, latency of a container to native's", "+50 %", "mqtt", Bridge, Native, half},
		{"the same of SCON to native's", "+5 %", "mqtt", Express, Native, half},
		{"the same of SCON to a container's", "−31 %", "mqtt", Express, Bridge, half},
	} {
		sum, n := 0.0, 0
		for _, c := range r.Cells {
			of := c.Load == f.loads || strings.HasSuffix(f.loads, "-") &&
				strings.HasPrefix(c.Load, f.loads)
			if other := r.cell(c.Load, f.to); of && c.Arm == f.arm && other != nil &&
				f.value(*other) > 0 {
				sum += f.value(c)/f.value(*other) - 1
				n++
			}
		}
		if n > 0 {
			all = append(all, beside{f.what, f.paper, percent(100 * sum / float64(n))})
		}
	}
	return all
}

func percent(value float64) string {
	sign := "+"
	if value < 0 {
		sign, value = "−", -value
	}
	return fmt.Sprintf("%s%.0f %%", sign, value)
}
