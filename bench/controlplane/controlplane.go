// Package controlplane measures what fastiov itself costs when sandboxes cost nothing: the path of
// a call through a real `fastiov up` over the sim driver, from its HTTP request to its answer or
// its record.
//
// This process is the load. It uses loopback and shares the machine's CPUs with the servers. So
// throughput shows how much one machine does of both, and the CPU time of a call is that of the
// server alone. Compared servers are measured in turns, so that other load of the machine affects
// both.
package controlplane

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/fastiov/fastiov/bench"
)

// A Bench holds what to measure and for how long.
type Bench struct {
	Command string        // this binary
	Plain   string        // its subcommand that runs ServePlain
	Rounds  int           // of every comparison
	Slice   time.Duration // how long each side of a round is under load
	Out     io.Writer     // progress
}

// A Result has one part for each question.
type Result struct {
	CPUs          int       `json:"cpus"` // shared by servers and load
	Warm          *Warm     `json:"warm"`
	ColdDecisions *Cold     `json:"cold_decisions"`
	Flatness      *Flatness `json:"flatness"`
	Memory        *Memory   `json:"memory"`
	Watched       *Watched  `json:"watched"`
}

// Run measures everything. An error means that the benchmark itself failed; a failed call is a
// result.
func (b *Bench) Run(ctx context.Context) (*Result, error) {
	r := &Result{CPUs: runtime.NumCPU()}
	for _, part := range []struct {
		name    string
		measure func() error
	}{
		{"warm", func() (err error) { r.Warm, err = b.warm(ctx); return err }},
		{"cold_decisions", func() (err error) { r.ColdDecisions, err = b.cold(ctx); return err }},
		{"flatness", func() (err error) { r.Flatness, err = b.flatness(ctx); return err }},
		{"memory", func() (err error) { r.Memory, err = b.memory(ctx); return err }},
		{"watched", func() (err error) { r.Watched, err = b.watched(ctx); return err }},
	} {
		if err := part.measure(); err != nil {
			return nil, fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return r, nil
}

func (b *Bench) say(format string, args ...any) {
	fmt.Fprintf(b.Out, "control-plane  "+format+"\n", args...)
}

// Failures counts the calls whose status was not the expected one.
func (r *Result) Failures() int {
	return r.Warm.Failed + r.ColdDecisions.Failed + r.Flatness.Failed + r.Watched.Failed
}

// Print shows the result for people: medians, and in brackets the smallest and the largest.
func (r *Result) Print(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(what string, q bench.Quantiles, unit string) {
		fmt.Fprintf(t, "%s\t%.4g %s\t(%.4g … %.4g)\n", what, q.Median, unit, q.Min, q.Max)
	}
	warm, cold := r.Warm, r.ColdDecisions
	row("warm calls", warm.Fastiov.PerSecond, "/s")
	row("  plain handler", warm.Plain.PerSecond, "/s")
	row("  ratio", warm.Ratio, "")
	row("  agent and invoker apart", warm.Apart.PerSecond, "/s")
	row("  ratio to one process", warm.Apart.Ratio, "")
	row("  CPU of a call", warm.Fastiov.CPU, "µs")
	row("  apart, of both", warm.Apart.CPU, "µs")
	row("  plain handler", warm.Plain.CPU, "µs")
	row("  the load's own", warm.LoadCPU, "µs")
	row("  allocations of a call", warm.Fastiov.Allocations, "")
	row("  plain handler", warm.Plain.Allocations, "")
	row(fmt.Sprintf("  p99 at %.0f/s", warm.Open.Rate), warm.Open.Fastiov, "ms")
	row("  plain handler", warm.Open.Plain, "ms")
	row("  added", warm.Open.Added, "ms")
	row("cold starts", cold.PerSecond, "/s")
	row("  CPU of a start", cold.CPU, "µs")
	row("  the load's own", cold.LoadCPU, "µs")
	row("  allocations of a start", cold.Allocations, "")
	for _, p := range r.Flatness.Points {
		row(fmt.Sprintf("beside %d sandboxes: warm", p.Sandboxes), p.Warm, "µs")
		row("  evict and start", p.Cold, "µs")
	}
	row("watched: CPU of a warm call", r.Watched.Watched, "µs")
	row("  alone", r.Watched.Alone, "µs")
	row("  more", r.Watched.Cost, "%")
	t.Flush()
	m := r.Memory
	fmt.Fprintf(w, "most to least: warm %.2f, evict and start %.2f\n", r.Flatness.WarmRatio,
		r.Flatness.ColdRatio)
	fmt.Fprintf(w,
		"an idle invoker: %.1f MiB, %.1f of them anonymous; its idle agent: %.1f MiB, %.1f; a queued activation: %.2f KiB, %.2f of them anonymous (%d queued)\n",
		m.Idle.MiB, m.Idle.AnonymousMiB, m.IdleAgent.MiB, m.IdleAgent.AnonymousMiB, m.QueuedKiB,
		m.QueuedAnonymousKiB, m.Queued)
	fmt.Fprintf(w, "%d CPUs, shared with the load; medians (least … most); %d calls failed\n",
		r.CPUs, r.Failures())
}
