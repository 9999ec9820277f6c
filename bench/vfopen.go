package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"text/tabwriter"

	"golang.org/x/sys/unix"
)

// VFOpen times N processes that each open a VF of their own through vfio, all released by one barrier, their groups attached. Before a round that is timed,
// other owners of these VFs are ended by SIGKILL at once, as by the loss of a node's VMMs: what the kernel then leaves undone is paid in
// the round. Each round plays all arms, so that what else the machine does hits them alike.
type VFOpen struct {
	Holder []string // the command that opens one VF: it gets the VFIO group node and the VF's address as two more arguments
	VFs    []GroupVF
	N      []int
	Rounds int
	Arms   []Arm     // none: the kernel as it is
	Out    io.Writer // progress
}

// An Arm is one way that the kernel opens VFs. Prepare makes it so; it may bind the VFs anew.
type Arm struct {
	Name    string
	Prepare func(vfs []GroupVF) error
}

// GroupVF is a VF and its VFIO group node.
type GroupVF struct{ Group, BDF string }

// VFOpenResult holds, for each N, the times in milliseconds from the barrier to the open VF.
type VFOpenResult struct {
	Kernel string      `json:"kernel"`
	Rounds int         `json:"rounds"`
	Points []OpenPoint `json:"points"`
}

// An OpenPoint is one N of one arm. LastFD has one figure a round, PerVF one a VF and round.
type OpenPoint struct {
	Arm    string    `json:"arm,omitempty"`
	N      int       `json:"n"`
	LastFD Quantiles `json:"last_fd_ms"`
	PerVF  Quantiles `json:"per_vf_ms"`
}

// Held is what a holder prints, on one line each: first that it is ready, then when the VF was open, by CLOCK_MONOTONIC.
type Held struct {
	Ready  bool   `json:"ready,omitempty"`
	OpenNs int64  `json:"open_ns,omitempty"`
	Error  string `json:"error,omitempty"`
}

// Run runs the benchmark.
func (b *VFOpen) Run(ctx context.Context) (*VFOpenResult, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return nil, err
	}
	r := &VFOpenResult{Kernel: unix.ByteSliceToString(name.Release[:]), Rounds: b.Rounds}
	arms := b.Arms
	if len(arms) == 0 {
		arms = []Arm{{Prepare: func([]GroupVF) error { return nil }}}
	}
	for _, n := range b.N {
		if n > len(b.VFs) {
			return nil, fmt.Errorf("%d VFs asked for, %d there; give smaller --n or a PF with more VFs", n, len(b.VFs))
		}
		last, each := make([][]float64, len(arms)), make([][]float64, len(arms))
		for round := range b.Rounds {
			for i, arm := range arms {
				times, err := b.play(ctx, arm, b.VFs[:n])
				if err != nil {
					return nil, fmt.Errorf("%s n=%d round %d: %w", arm.Name, n, round+1, err)
				}
				each[i] = append(each[i], times...)
				last[i] = append(last[i], slices.Max(times))
				fmt.Fprintf(b.Out, "vf-open  %s  n=%d  round %d/%d  %.1f ms\n", arm.Name, n, round+1, b.Rounds, last[i][round])
			}
		}
		for i, arm := range arms {
			r.Points = append(r.Points, OpenPoint{Arm: arm.Name, N: n, LastFD: QuantilesOf(last[i]), PerVF: QuantilesOf(each[i])})
		}
	}
	return r, nil
}

// play prepares an arm and returns the times of the round after the first owners were killed.
func (b *VFOpen) play(ctx context.Context, arm Arm, vfs []GroupVF) ([]float64, error) {
	if err := arm.Prepare(vfs); err != nil {
		return nil, err
	}
	if _, err := b.round(ctx, vfs); err != nil {
		return nil, err
	}
	return b.round(ctx, vfs)
}

// round returns when each VF was open, in milliseconds after the barrier.
func (b *VFOpen) round(ctx context.Context, vfs []GroupVF) (times []float64, err error) {
	barrier, release, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer barrier.Close()
	var holders []*holder
	defer func() {
		release.Close()
		for _, h := range holders { // all at once, then wait
			_ = h.cmd.Process.Kill()
		}
		for _, h := range holders {
			_ = h.cmd.Wait()
		}
	}()
	for _, v := range vfs {
		h, err := b.start(ctx, v, barrier)
		if err != nil {
			return nil, err
		}
		holders = append(holders, h)
	}
	for _, h := range holders {
		if _, err := h.next(); err != nil {
			return nil, err
		}
	}
	begin := monotonic()
	release.Close() // end of file for every holder at once
	for _, h := range holders {
		held, err := h.next()
		if err != nil {
			return nil, err
		}
		times = append(times, float64(held.OpenNs-begin)/1e6)
	}
	return times, nil
}

type holder struct {
	cmd  *exec.Cmd
	vf   string
	says *bufio.Scanner
}

func (b *VFOpen) start(ctx context.Context, v GroupVF, barrier *os.File) (*holder, error) {
	cmd := exec.CommandContext(ctx, b.Holder[0], append(b.Holder[1:len(b.Holder):len(b.Holder)], v.Group, v.BDF)...)
	cmd.Stdin = barrier
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &holder{cmd: cmd, vf: v.BDF, says: bufio.NewScanner(out)}, nil
}

func (h *holder) next() (held Held, err error) {
	if !h.says.Scan() {
		return held, fmt.Errorf("the holder of %s ended early", h.vf)
	}
	if err := json.Unmarshal(h.says.Bytes(), &held); err != nil {
		return held, fmt.Errorf("the holder of %s said %q: %w", h.vf, h.says.Text(), err)
	}
	if held.Error != "" {
		return held, fmt.Errorf("opening %s: %s", h.vf, held.Error)
	}
	return held, nil
}

func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // the clock exists on every Linux
	}
	return t.Nano()
}

// HoldVF is a holder's body: it attaches the VF's group, waits for the end of barrier, opens the VF, says when, and keeps it open until
// it is killed.
func HoldVF(barrier io.Reader, out io.Writer, attach, open func() error) error {
	say := json.NewEncoder(out)
	if err := attach(); err != nil {
		return say.Encode(Held{Error: err.Error()})
	}
	if err := say.Encode(Held{Ready: true}); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, barrier); err != nil {
		return err
	}
	if err := open(); err != nil {
		return say.Encode(Held{Error: err.Error()})
	}
	if err := say.Encode(Held{OpenNs: monotonic()}); err != nil {
		return err
	}
	select {} // killed here
}

// Print shows the result as a person reads it.
func (r *VFOpenResult) Print(w io.Writer) {
	fmt.Fprintf(w, "kernel %s, %d rounds; ms from the barrier\n", r.Kernel, r.Rounds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "arm\tn\tlast fd median\tmin\tmax\tper VF median\tp99\t")
	for _, p := range r.Points {
		fmt.Fprintf(t, "%s\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t\n", p.Arm, p.N, p.LastFD.Median, p.LastFD.Min, p.LastFD.Max, p.PerVF.Median, p.PerVF.P99)
	}
	t.Flush()
}
