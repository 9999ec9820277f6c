package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync/atomic"
	"text/tabwriter"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// VFOpen measures N processes that each open their own VF through vfio. One barrier releases them
// all: once they begin with container and group, and once the group is attached already, which
// leaves the kernel's locks and resets. Before each of both, other owners of these VFs are killed
// with SIGKILL at once, as if the node had lost its VMMs: what the kernel has not cleaned up by
// then counts in the round. Each round plays all arms, so that other load of the machine affects
// all of them alike.
type VFOpen struct {
	Holder []string // the command that opens one VF; a Hold in JSON is its last argument
	VFs    []GroupVF
	N      []int
	Rounds int
	Arms   []Arm     // empty: the kernel as it is
	Out    io.Writer // progress
}

// An Arm is one way in which the kernel opens VFs. Prepare sets it up; it may bind the VFs again.
type Arm struct {
	Name    string
	Prepare func(vfs []GroupVF) error
}

// GroupVF is a VF and its VFIO group node.
type GroupVF struct{ Group, BDF string }

// A Hold holds the orders for one holder.
type Hold struct {
	GroupVF
	Slot     int  // its place on the board, where it writes the time
	Attached bool // attach the group before the barrier
}

// VFOpenResult holds, for each N, the times in milliseconds from the barrier to the open VF.
type VFOpenResult struct {
	Kernel string      `json:"kernel"`
	Rounds int         `json:"rounds"`
	Points []OpenPoint `json:"points"`
}

// An OpenPoint is the result for one N of one arm.
type OpenPoint struct {
	Arm string `json:"arm,omitempty"`
	N   int    `json:"n"`
	OpenTimes
	Attached OpenTimes `json:"attached"` // with the groups attached before the barrier
}

// OpenTimes run from the barrier to the open VF. LastFD has one figure for each round, PerVF one
// for each VF and round.
type OpenTimes struct {
	LastFD Quantiles `json:"last_fd_ms"`
	PerVF  Quantiles `json:"per_vf_ms"`

	last, each []float64
}

func (o *OpenTimes) add(times []float64) {
	o.each = append(o.each, times...)
	o.last = append(o.last, slices.Max(times))
}

func (o *OpenTimes) sum() { o.LastFD, o.PerVF = QuantilesOf(o.last), QuantilesOf(o.each) }

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
			return nil, fmt.Errorf(
				"%d VFs asked for, %d there; give smaller --n or a PF with more VFs", n, len(b.VFs))
		}
		points := make([]OpenPoint, len(arms))
		for i, arm := range arms {
			points[i] = OpenPoint{Arm: arm.Name, N: n}
		}
		for round := range b.Rounds {
			for i, arm := range arms {
				p := &points[i]
				if err := b.play(ctx, arm, b.VFs[:n], p); err != nil {
					return nil, fmt.Errorf("%s n=%d round %d: %w", arm.Name, n, round+1, err)
				}
				fmt.Fprintf(b.Out, "vf-open  %s  n=%d  round %d/%d  %.1f ms, attached %.1f\n",
					arm.Name, n, round+1, b.Rounds, p.last[round], p.Attached.last[round])
			}
		}
		for i := range points {
			points[i].sum()
			points[i].Attached.sum()
		}
		r.Points = append(r.Points, points...)
	}
	return r, nil
}

// play prepares an arm and measures it twice: after its first owners were killed, and after its
// second.
func (b *VFOpen) play(ctx context.Context, arm Arm, vfs []GroupVF, p *OpenPoint) error {
	if err := arm.Prepare(vfs); err != nil {
		return err
	}
	if _, err := b.round(ctx, vfs, false); err != nil {
		return err
	}
	times, err := b.round(ctx, vfs, false)
	if err != nil {
		return err
	}
	p.add(times)
	if times, err = b.round(ctx, vfs, true); err != nil {
		return err
	}
	p.Attached.add(times)
	return nil
}

// round returns when each VF was open, in milliseconds after the barrier.
func (b *VFOpen) round(
	ctx context.Context, vfs []GroupVF, attached bool,
) (times []float64, err error) {
	barrier, release, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer barrier.Close()
	board, err := newBoard(len(vfs))
	if err != nil {
		return nil, err
	}
	defer board.close()
	var holders []*holder
	defer func() {
		release.Close()
		for _, h := range holders { // kill all at once, then wait
			_ = h.cmd.Process.Kill()
		}
		for _, h := range holders {
			_ = h.cmd.Wait()
		}
	}()
	for i, v := range vfs {
		h, err := b.start(ctx, Hold{GroupVF: v, Slot: i, Attached: attached}, barrier, board.File)
		if err != nil {
			return nil, err
		}
		holders = append(holders, h)
	}
	for _, h := range holders {
		if err := h.ready(); err != nil {
			return nil, err
		}
	}
	failed := make(chan error, len(holders))
	for _, h := range holders {
		go func() { failed <- h.ended() }()
	}
	begin := monotonic()
	release.Close() // end of file for all holders at once
	for !board.full() {
		select {
		case err := <-failed:
			return nil, err
		case <-time.After(20 * time.Millisecond):
			// seldom, because it takes CPU time from the holders
		}
	}
	for slot := range vfs {
		times = append(times, float64(board.slots[slot].Load()-begin)/1e6)
	}
	return times, nil
}

type holder struct {
	cmd  *exec.Cmd
	vf   string
	says *bufio.Scanner
}

func (b *VFOpen) start(ctx context.Context, hold Hold, barrier, board *os.File) (*holder, error) {
	what, err := json.Marshal(hold)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, b.Holder[0],
		append(b.Holder[1:len(b.Holder):len(b.Holder)], string(what))...)
	cmd.Stdin = barrier
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{board}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := startQuiet(cmd); err != nil {
		return nil, err
	}
	return &holder{cmd: cmd, vf: hold.BDF, says: bufio.NewScanner(out)}, nil
}

// startQuiet starts a process of ours whose timers expire late. No VMM has Go's own monitor thread,
// which wakes every 20 µs while its process runs: 64 of them use as much CPU as the opening of the
// VFs. A holder also waits in a raw system call, since Go would otherwise wake that thread. Go gets
// one processor, since with several its threads wait for one another by short sleeps.
func startQuiet(cmd *exec.Cmd) error {
	runtime.LockOSThread() // a child inherits the slack of the thread that made it
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(time.Minute), 0, 0, 0); err != nil {
		return err
	}
	defer unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // 0 restores the default
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	return cmd.Start()
}

const holderReady = "ready"

func (h *holder) ready() error {
	if !h.says.Scan() {
		return h.ended()
	}
	if said := h.says.Text(); said != holderReady {
		return fmt.Errorf("opening %s: %s", h.vf, said)
	}
	return nil
}

// ended waits for a holder's message about its failure. A holder sends no other message, and does
// not end by itself.
func (h *holder) ended() error {
	if h.says.Scan() {
		return fmt.Errorf("opening %s: %s", h.vf, h.says.Text())
	}
	return fmt.Errorf("the holder of %s ended early", h.vf)
}

func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // the clock exists on every Linux
	}
	return t.Nano()
}

// A board is memory where each holder writes when its VF was open, by CLOCK_MONOTONIC. If the
// holders used pipes, this process would wake up to read them, on a CPU that the other holders
// need.
type board struct {
	*os.File
	slots []atomic.Int64
}

func newBoard(slots int) (*board, error) {
	fd, err := unix.MemfdCreate("board", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "board")
	if err := f.Truncate(int64(slots) * 8); err != nil {
		f.Close()
		return nil, err
	}
	return openBoard(f)
}

// openBoard maps all of f. It closes f if that fails.
func openBoard(f *os.File) (*board, error) {
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	at, err := unix.MmapPtr(int(f.Fd()), 0, nil, uintptr(info.Size()),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("the holders' board: %w", err)
	}
	return &board{f, unsafe.Slice((*atomic.Int64)(at), info.Size()/8)}, nil
}

func (b *board) close() {
	_ = unix.MunmapPtr(unsafe.Pointer(&b.slots[0]), uintptr(len(b.slots)*8))
	b.File.Close()
}

func (b *board) full() bool {
	for i := range b.slots {
		if b.slots[i].Load() == 0 {
			return false
		}
	}
	return true
}

// boardFD is the board's descriptor in a holder.
const boardFD = 3

// HoldVF is the body of a holder. It waits for the end of its standard input, opens the VF, writes
// down the time, and keeps the VF open until it is killed. It reports an error on its standard
// output.
func HoldVF(h Hold, attach, open func() error) error {
	board, err := openBoard(os.NewFile(boardFD, "board"))
	if err != nil {
		return err
	}
	if err := h.run(board, attach, open); err != nil {
		fmt.Println(err)
	}
	for {
		unix.RawSyscall(unix.SYS_PAUSE, 0, 0, 0) // it is killed here
	}
}

func (h Hold) run(board *board, attach, open func() error) error {
	if h.Attached {
		if err := attach(); err != nil {
			return err
		}
	}
	fmt.Println(holderReady)
	var b [1]byte
	if _, _, err := unix.RawSyscall(unix.SYS_READ, 0, uintptr(unsafe.Pointer(&b[0])), 1); err != 0 {
		return err
	}
	if !h.Attached {
		if err := attach(); err != nil {
			return err
		}
	}
	if err := open(); err != nil {
		return err
	}
	board.slots[h.Slot].Store(monotonic())
	return nil
}

// Print shows the result for people.
func (r *VFOpenResult) Print(w io.Writer) {
	fmt.Fprintf(w, "kernel %s, %d rounds; ms from the barrier\n", r.Kernel, r.Rounds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t,
		"arm\tn\tlast fd median\tmin\tmax\tper VF median\tp99\tattached: last fd\tmin\tmax\tper VF\tp99\t")
	for _, p := range r.Points {
		fmt.Fprintf(t, "%s\t%d\t", p.Arm, p.N)
		for _, o := range []OpenTimes{p.OpenTimes, p.Attached} {
			fmt.Fprintf(t, "%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t", o.LastFD.Median, o.LastFD.Min,
				o.LastFD.Max, o.PerVF.Median, o.PerVF.P99)
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}
