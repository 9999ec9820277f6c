package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/bench/ablation"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/sandbox/sim"
)

// A process of bench startup, and its flag that says where functions find a storage server.
const (
	startupRound = "startup-round"
	storeOfRound = "functions-storage"
)

// startupRoundCmd is a process of bench startup: it makes a node under an arm, fires one burst at
// it, and prints the round as JSON. It takes the flags of `up` for its node.
func startupRoundCmd() *cobra.Command {
	var n nodeFlags
	var i invokerFlags
	cmd := &cobra.Command{Use: startupRound + " ORDER", Hidden: true, Args: cobra.ExactArgs(1)}
	n.register(cmd)
	i.register(cmd)
	var store string
	cmd.Flags().StringVar(&store, storeOfRound, "", "URL of a storage server for the function")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r := round{n: &n, i: &i, store: store, result: &ablation.Round{},
			log: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(),
				&slog.HandlerOptions{Level: slog.LevelWarn}))}
		if err := json.Unmarshal([]byte(args[0]), &r.result.Order); err != nil {
			return err
		}
		if err := r.play(cmd); err != nil {
			return err
		}
		return json.NewEncoder(cmd.OutOrStdout()).Encode(r.result)
	}
	return cmd
}

// A round is one that is played.
type round struct {
	n      *nodeFlags
	i      *invokerFlags
	store  string
	log    *slog.Logger
	result *ablation.Round

	own    *own
	calls  *ablation.Calls // nil: not counted
	before map[ablation.Count]float64
	after  map[ablation.Count]float64
	failed error // to count
	cpu    map[string]time.Duration
}

func (r *round) play(cmd *cobra.Command) (err error) {
	if err := r.prepare(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "fastiov-round-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r.n.stateDir, r.n.metrics = dir, ""
	if r.n.sandbox.programmed != nil {
		r.n.runDir = dir
	}
	unlock, err := r.n.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if r.own, err = openOwn(cmd.Context(), r.n, r.i, r.log); err != nil {
		return err
	}
	defer r.own.close()
	if err := r.zeroAhead(); err != nil {
		return err
	}
	if r.n.sandbox.kernel {
		if r.calls, err = ablation.CountCalls(); err != nil {
			r.log.Warn("execs, mounts and changes of tables are not counted", "err", err)
		} else {
			defer r.calls.Close()
		}
	}
	r.cpu = map[string]time.Duration{}
	f, err := functionNamed(r.result.Function, r.store)
	if err != nil {
		return err
	}
	b := bench.Burst{Name: "startup", N: r.result.N, Rounds: 1, Kind: f.Kind, Code: f.Code,
		With: f.Parameters, Memory: r.result.MemoryMiB, Out: io.Discard,
		Before: func() { r.before = r.count() },
		After:  func(s *bench.Start) { r.answered(cmd.Context(), s) }}
	r.own.aim(&b)
	burst, err := b.Run(cmd.Context())
	if err == nil {
		err = r.failed
	}
	if err == nil {
		err = r.keep(burst)
	}
	if err == nil {
		err = r.report(cmd.Context())
	}
	return err
}

// zeroAhead makes the memory of the round's starts, if the arm has that zeroed before.
func (r *round) zeroAhead() error {
	if r.own.arm.Zeroed == 0 {
		return nil
	}
	need := r.result.N * (r.result.MemoryMiB + r.n.overheadMiB())
	if r.own.empty > 0 && need > r.own.empty {
		return fmt.Errorf("%s zeroes the memory of all %d starts ahead, and with their VMMs that"+
			" takes %d MiB of the %d that are free: use a smaller --n or --mem", r.own.arm,
			r.result.N, need, r.own.empty)
	}
	return r.own.microVMs.ZeroAhead(r.result.N, r.result.MemoryMiB)
}

// report takes the reports of sandboxes that failed, which end with the node.
func (r *round) report(ctx context.Context) error {
	all, err := r.own.api.Report(ctx, &api.ReportRequest{})
	if err != nil {
		return err
	}
	r.result.Reports = map[string][]byte{}
	for _, kept := range all.Kept {
		reply, err := r.own.api.Report(ctx, &api.ReportRequest{Id: kept.Id})
		if err != nil {
			return err
		}
		r.result.Reports[kept.Id] = reply.TarGz
	}
	return nil
}

// prepare turns the arm into the node's settings.
func (r *round) prepare() error {
	a, err := arm.Parse(r.result.Arm)
	if err != nil {
		return err
	}
	if r.n.sandbox.programmed != nil {
		r.n.simStages = sim.Of(a, r.result.MemoryMiB, r.n.simStart)
		return nil
	}
	r.n.fastiov, r.n.zeroesAhead = r.result.Arm, true
	if a.Tap || r.n.sandbox.netdevs && !a.Netdev { // flags say what is behind VFs of other rounds
		r.n.subnet, r.n.first = netip.Prefix{}, netip.Addr{}
		r.n.gateway, r.n.dns = netip.Addr{}, netip.Addr{}
	}
	return nil
}

// count returns what has been counted so far. A simulation counts nothing.
func (r *round) count() map[ablation.Count]float64 {
	counts := map[ablation.Count]float64{}
	if r.calls != nil {
		var err error
		if counts, err = r.calls.Read(); err != nil {
			r.failed = errors.Join(r.failed, err)
			return nil
		}
	}
	if r.own.probe != nil {
		for _, n := range r.own.probe.Resets() {
			counts[ablation.Resets] += float64(n)
		}
		counts[ablation.Resets] += 0 // it was counted
		counts[ablation.Mapped] = float64(r.own.probe.Mapped()) / (1 << 20)
	}
	return counts
}

// answered counts anew, so that the round's counts end with its last answer, and reads how long the
// start's guest has computed. Bursts call it in turn.
func (r *round) answered(ctx context.Context, s *bench.Start) {
	r.after = r.count()
	status, err := r.own.api.Status(ctx, &api.StatusRequest{})
	if err != nil {
		r.failed = errors.Join(r.failed, err)
		return
	}
	for _, sandbox := range status.Sandboxes {
		if sandbox.Id == s.Sandbox && sandbox.Pid > 0 {
			cpu, err := guestCPU(int(sandbox.Pid))
			if err != nil {
				r.failed = errors.Join(r.failed, err)
			}
			r.cpu[s.Sandbox] = cpu
		}
	}
}

// guestCPU returns how long the virtual processors of a process have computed. The kernel rounds to
// its ticks.
func guestCPU(pid int) (time.Duration, error) {
	const field, tick = 43, 10 * time.Millisecond
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// the second field is the name in brackets, which may have spaces
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const after = 3 // the number of the first of these fields
	if len(fields) <= field-after {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	ticks, err := strconv.ParseInt(fields[field-after], 10, 64)
	return time.Duration(ticks) * tick, err
}

// keep notes what the burst showed.
func (r *round) keep(b *bench.BurstResult) error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err
	}
	out := r.result
	out.Kernel = unix.ByteSliceToString(name.Release[:])
	out.Requested, out.Answered, out.Leaked = b.Requested, b.Answered, b.Leaked
	out.Errors = b.Errors
	out.Counts = map[ablation.Count]float64{}
	for count, n := range r.after {
		out.Counts[count] = n - r.before[count]
	}
	var first time.Time
	for _, s := range b.Starts {
		if first.IsZero() || s.Begin.Before(first) {
			first = s.Begin
		}
	}
	since := func(at time.Time) float64 { return float64(at.Sub(first).Microseconds()) / 1000 }
	for _, s := range b.Starts {
		start := ablation.Start{Begin: since(s.Begin), EndToEnd: s.EndToEnd, Stages: s.StagesMs,
			GuestCPU: float64(r.cpu[s.Sandbox].Milliseconds())}
		for _, segment := range timeline.Segments(s.Spans, s.Begin, s.End) {
			start.Segments = append(start.Segments, ablation.Segment{Stage: segment.Stage,
				From: since(segment.Begin), To: since(segment.End)})
		}
		for _, f := range s.Memory {
			if f.At == timeline.FirstAnswer {
				out.Counts[ablation.Zeroed] += float64(f.Zeroed) / (1 << 20)
			}
		}
		out.Starts = append(out.Starts, start)
	}
	return nil
}
