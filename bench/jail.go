package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/cgroup"
	"github.com/fastiov/fastiov/node-agent/sandbox/jail"
)

// Jail measures what the jail costs a start. A static program that writes a byte and ends is
// started in a cell and, in turns, with only a cgroup and a user. A start ends when the byte has
// come.
type Jail struct {
	Rounds int
	Out    io.Writer // progress
}

// JailResult holds times in ms. The kernel counts the system calls of a start in separate rounds.
type JailResult struct {
	Rounds  int       `json:"rounds"`
	Without Quantiles `json:"without_ms"`
	With    Quantiles `json:"with_ms"`
	Cost    Quantiles `json:"cost_ms"` // of each pair
	Calls   struct {
		Without JailCalls `json:"without"`
		With    JailCalls `json:"with"`
	} `json:"calls"`
	RoomsOnPath int64  `json:"rooms_made_on_path"`
	Limits      string `json:"confinement"`
}

// JailCalls counts the system calls of one start, by all processes in its cgroup.
type JailCalls struct {
	Execs  uint64 `json:"execs"`
	Mounts uint64 `json:"mounts"` // and unmounts, of all kinds
	Setns  uint64 `json:"setns"`
	Mknods uint64 `json:"mknods"`
}

const jailBench = "fastiov-bench"

// Run starts the given number of pairs.
func (b *Jail) Run(ctx context.Context) (r *JailResult, err error) {
	dir, err := os.MkdirTemp("", "fastiov-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	program := filepath.Join(dir, "word")
	if err := os.WriteFile(program, wordProgram(), 0o755); err != nil {
		return nil, err
	}
	host, err := jail.Open(jail.Config{
		Name: jailBench, Program: program, Rooms: b.Rounds + counted, BestEffort: true,
		Log: slog.New(slog.NewTextHandler(b.Out, nil)),
	})
	if err != nil {
		return nil, err
	}
	defer host.Close()
	root, err := cgroup.Open(jailBench)
	if err != nil {
		return nil, err
	}
	if err := b.stocked(ctx, host); err != nil {
		return nil, err
	}
	arms := [2]arm{
		func(id string) (time.Duration, error) { return startAlone(root, program, id) },
		func(id string) (time.Duration, error) { return startJailed(host, program, id) },
	}
	r = &JailResult{Rounds: b.Rounds, Limits: host.Confinement()}
	if err := b.timed(ctx, arms, r); err != nil {
		return nil, err
	}
	for i, calls := range []*JailCalls{&r.Calls.Without, &r.Calls.With} {
		if *calls, err = countCalls(root, func(n int) error {
			_, err := arms[i](fmt.Sprintf("counted-%d-%d", n, i))
			return err
		}); err != nil {
			return nil, err
		}
	}
	r.RoomsOnPath = host.MadeOnPath()
	return r, nil
}

// An arm is a way to start the program. It returns how long the start took.
type arm func(id string) (time.Duration, error)

// timed starts the program by each arm, in turns.
func (b *Jail) timed(ctx context.Context, arms [2]arm, r *JailResult) error {
	var times [2][]float64
	var cost []float64
	for round := range b.Rounds {
		var pair [2]float64
		for i := range arms {
			n := (i + round) % 2 // each arm goes first every second time
			took, err := arms[n](fmt.Sprintf("%d-%d", round, n))
			if err != nil {
				return err
			}
			pair[n] = float64(took.Microseconds()) / 1000
			times[n] = append(times[n], pair[n])
		}
		cost = append(cost, pair[1]-pair[0])
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if (round+1)%10 == 0 {
			fmt.Fprintf(b.Out, "jail  round %d/%d\n", round+1, b.Rounds)
		}
	}
	r.Without, r.With, r.Cost = QuantilesOf(times[0]), QuantilesOf(times[1]), QuantilesOf(cost)
	return nil
}

// stocked returns when all rooms are made.
func (b *Jail) stocked(ctx context.Context, host *jail.Host) error {
	for begin := time.Now(); !host.Stocked(); {
		fmt.Fprintf(b.Out, "jail  rooms are being made, for %.0f s by now\n",
			time.Since(begin).Seconds())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
	return nil
}

// startJailed starts program in a cell of the jail, and returns how long that took.
func startJailed(host *jail.Host, program, id string) (time.Duration, error) {
	return timeWord(func(cmd *exec.Cmd) (end func(), err error) {
		cell, err := host.Build(sandbox.Spec{ID: id}, 64)
		if err != nil {
			return nil, err
		}
		cmd.Args = []string{program}
		return cell.Close, cell.Start(cmd, 0)
	})
}

// startAlone times a start with a user and a cgroup, and nothing else.
func startAlone(root *cgroup.Root, program, id string) (time.Duration, error) {
	return timeWord(func(cmd *exec.Cmd) (end func(), err error) {
		group, err := root.Create(id, cgroup.Limits{MemoryMiB: 64, PIDs: 16})
		if err != nil {
			return nil, err
		}
		dir, err := group.Open()
		if err != nil {
			return func() { _ = group.Kill() }, err
		}
		defer dir.Close()
		const nobody = 65534
		cmd.Path, cmd.Args = program, []string{program}
		cmd.SysProcAttr = &syscall.SysProcAttr{
			UseCgroupFD: true, CgroupFD: int(dir.Fd()), Setsid: true,
			Credential: &syscall.Credential{Uid: nobody, Gid: nobody},
		}
		err = cmd.Start()
		return func() { _ = cmd.Wait(); _ = group.Kill() }, err
	})
}

// timeWord measures start until the program's byte has come.
func timeWord(start func(cmd *exec.Cmd) (end func(), err error)) (took time.Duration, err error) {
	word, theirs, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer word.Close()
	begin := time.Now()
	end, err := start(&exec.Cmd{Stdout: theirs, Stderr: os.Stderr})
	theirs.Close()
	if end != nil {
		defer end()
	}
	if err != nil {
		return 0, err
	}
	if n, err := word.Read(make([]byte, 1)); n != 1 {
		return 0, errors.Join(errors.New("the program ended without its word"), err)
	}
	return time.Since(begin), nil
}

// Print shows the result for people.
func (r *JailResult) Print(w io.Writer) {
	row := func(name string, q Quantiles) {
		fmt.Fprintf(w, "%-8s %6.2f ms median, %6.2f least, %6.2f p90\n", name,
			q.Median, q.Min, q.P90)
	}
	row("without", r.Without)
	row("with", r.With)
	row("cost", r.Cost)
	fmt.Fprintf(w, "execs %d → %d, mounts %d → %d on the path; %d rooms made on it\n%s\n",
		r.Calls.Without.Execs, r.Calls.With.Execs, r.Calls.Without.Mounts, r.Calls.With.Mounts,
		r.RoomsOnPath, r.Limits)
}
