package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/sandbox/sim"
)

// Told is a stage of a simulated start. It holds the time that sim was given, how far the records
// are off, and how far Prometheus is off, if one scraped the node. Within means that the records'
// median and Prometheus' mean are off by at most 5 % or 2 ms, whichever is more. The worst start
// only shows how late the machine's timers fired while others had the CPU.
type Told struct {
	Ms            float64  `json:"told_ms"`
	MedianOff     float64  `json:"median_off_ms"`
	WorstOff      float64  `json:"worst_off_ms"`
	PrometheusOff *float64 `json:"prometheus_mean_off_ms,omitempty"`
	Within        bool     `json:"within"`
}

// byPrometheus returns the mean of each stage in ms once Prometheus has scraped all starts, which
// are all that the node has made.
func byPrometheus(ctx context.Context, url string, starts int) (map[timeline.Stage]float64, error) {
	client, err := api.NewClient(api.Config{Address: url})
	if err != nil {
		return nil, err
	}
	ask := func(query string) (model.Vector, error) {
		value, _, _, err := prometheus.NewAPI(client).Query(ctx, query, time.Now())
		if err != nil {
			return nil, fmt.Errorf("prometheus: %s: %w", query, err)
		}
		return value.(model.Vector), nil
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		seen, err := ask("sum(fastiov_cold_start_seconds_count)")
		if err != nil {
			return nil, err
		}
		if len(seen) == 1 && int(seen[0].Value) >= starts {
			break
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("prometheus: within 30 s it has not seen %d cold starts: %v",
				starts, seen)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	means, err := ask(
		"1000 * sum by (stage) (fastiov_cold_start_stage_seconds_sum) / sum by (stage) (fastiov_cold_start_stage_seconds_count)")
	if err != nil {
		return nil, err
	}
	stages := map[timeline.Stage]float64{}
	for _, mean := range means {
		stages[timeline.Stage(mean.Metric["stage"])] = float64(mean.Value)
	}
	return stages, nil
}

// holdAgainst compares the measured times with the times that sim was given. scraped is nil without
// a Prometheus.
func (r *BurstResult) holdAgainst(steps []sim.Step, scraped map[timeline.Stage]float64) {
	for _, step := range steps {
		told := Told{Ms: float64(step.Takes) / float64(time.Millisecond)}
		var off []float64
		for _, s := range r.Starts {
			off = append(off, s.StagesMs[step.Stage]-told.Ms)
		}
		if len(off) == 0 {
			continue
		}
		told.WorstOff = slices.MaxFunc(off,
			func(a, b float64) int { return cmp.Compare(math.Abs(a), math.Abs(b)) })
		told.MedianOff = QuantilesOf(off).Median
		allowed := max(0.05*told.Ms, 2)
		told.Within = math.Abs(told.MedianOff) <= allowed
		if scraped != nil {
			off := scraped[step.Stage] - told.Ms
			told.PrometheusOff = &off
			told.Within = told.Within && math.Abs(off) <= allowed
		}
		if r.Told == nil {
			r.Told = map[timeline.Stage]Told{}
		}
		r.Told[step.Stage] = told
	}
}

// AsTold reports whether all stages with a given time are within their bounds.
func (r *BurstResult) AsTold() bool {
	for _, t := range r.Told {
		if !t.Within {
			return false
		}
	}
	return true
}

func (r *BurstResult) printTold(w io.Writer) {
	for _, stage := range timeline.Order {
		if t, is := r.Told[stage]; is {
			verdict := "as told"
			if !t.Within {
				verdict = "NOT as told"
			}
			fmt.Fprintf(w, "%s: %s, sim was told %.1f ms; off by %+.1f (median), %+.1f (worst)",
				stage, verdict, t.Ms, t.MedianOff, t.WorstOff)
			if t.PrometheusOff != nil {
				fmt.Fprintf(w, ", %+.1f (mean, by Prometheus)", *t.PrometheusOff)
			}
			fmt.Fprintln(w)
		}
	}
}
