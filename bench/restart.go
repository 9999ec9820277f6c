package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fastiov/fastiov/node-agent/api"
)

// Restart measures a node whose agent is killed beside N sandboxes and started again.
type Restart struct {
	Agent   []string // the agent's command line
	Socket  string   // where the agent serves its API
	N       int
	Stopped int       // how many of the VMMs are stopped by a signal while no agent runs
	Out     io.Writer // progress
}

// A RestartResult holds times in ms since the second agent was started; 0: it never happened.
type RestartResult struct {
	Driver         string  `json:"driver"` // sim: its sandboxes end with the agent
	N              int     `json:"n"`
	Stopped        int     `json:"stopped"`
	Serves         float64 `json:"serves_ms"` // the agent's first answer
	FirstAdopted   float64 `json:"first_adopted_ms"`
	LastAdopted    float64 `json:"last_adopted_ms"`
	Settled        float64 `json:"settled_ms"` // nothing is adopting or ending any more
	Adopted        int     `json:"adopted"`
	Ended          int     `json:"ended"`
	CPU            float64 `json:"cpu_ms"`     // of all processors, from the start to settled
	Drained        float64 `json:"drained_ms"` // how long ending all of them at once took
	CapacityBefore uint64  `json:"capacity_before_mib"`
	CapacityAfter  uint64  `json:"capacity_after_mib"`
	ReservedBefore uint64  `json:"reserved_before_mib"`
	ReservedAtOnce uint64  `json:"reserved_at_first_answer_mib"`
}

// Run starts an agent and its sandboxes, kills it, and starts it again.
func (b *Restart) Run(ctx context.Context) (*RestartResult, error) {
	former, _, err := b.begin(ctx)
	if err != nil {
		return nil, err
	}
	before, err := b.fill(ctx, former.node)
	if err != nil {
		return nil, errors.Join(err, b.end(former))
	}
	former.kill()
	for _, s := range before.Sandboxes[:b.Stopped] {
		if err := syscall.Kill(int(s.Pid), syscall.SIGSTOP); err != nil {
			fmt.Fprintf(b.Out, "restart  process %d of %s: %v\n", s.Pid, s.Id, err)
		}
	}
	busyBefore, err := Busy()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	ms := func(at time.Time) float64 { return float64(at.Sub(began).Microseconds()) / 1000 }
	agent, now, err := b.begin(ctx)
	if err != nil {
		return nil, err
	}
	r := &RestartResult{
		Driver: before.Driver, N: b.N, Stopped: b.Stopped, Serves: ms(time.Now()),
		CapacityBefore: before.MemoryMib, CapacityAfter: now.MemoryMib,
		ReservedBefore: before.MemoryReservedMib, ReservedAtOnce: now.MemoryReservedMib,
	}
	fmt.Fprintf(b.Out, "restart  it serves after %.0f ms\n", r.Serves)
	for !now.Settled() {
		if now, err = look(ctx, agent.node, seldom); err != nil {
			return nil, errors.Join(err, b.end(agent))
		}
	}
	r.Settled = ms(time.Now())
	busyAfter, err := Busy()
	if err != nil {
		return nil, errors.Join(err, b.end(agent))
	}
	r.CPU = float64((busyAfter - busyBefore).Milliseconds())
	var adopted []float64
	for _, s := range now.Sandboxes {
		adopted = append(adopted, ms(time.Unix(0, s.SinceNs)))
	}
	if r.Adopted, r.Ended = len(adopted), b.N-len(adopted); r.Adopted > 0 {
		r.FirstAdopted, r.LastAdopted = slices.Min(adopted), slices.Max(adopted)
	}
	ends := time.Now()
	err = b.end(agent)
	r.Drained = float64(time.Since(ends).Microseconds()) / 1000
	return r, err
}

// An agentProcess is an agent that serves its API.
type agentProcess struct {
	cmd    *exec.Cmd
	node   api.NodeClient
	hangUp func()
}

func (a *agentProcess) kill() {
	a.hangUp()
	_ = a.cmd.Process.Kill()
	_ = a.cmd.Wait()
}

// begin starts an agent and returns its first answer.
func (b *Restart) begin(ctx context.Context) (*agentProcess, *api.StatusReply, error) {
	cmd := exec.Command(b.Agent[0], b.Agent[1:]...)
	cmd.Stderr = b.Out
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		a := &agentProcess{cmd, nil, func() {}}
		probe, err := net.Dial("unix", b.Socket) // a gRPC client would pause before it tried again
		if err == nil {
			probe.Close()
			a.node, a.hangUp, err = api.Dial(b.Socket, nil)
		}
		if err == nil {
			var st *api.StatusReply
			if st, err = look(ctx, a.node, 0); err == nil {
				return a, st, nil
			}
			a.hangUp()
		}
		select {
		case <-ctx.Done():
			a.kill()
			return nil, nil, fmt.Errorf("the agent does not serve: %w", err)
		case <-time.After(often):
		}
	}
}

// A serving agent is asked seldom: each answer takes CPU time from the adoptions.
const (
	often  = 5 * time.Millisecond
	seldom = 200 * time.Millisecond
)

// look asks for the status, but not before after has passed since the last time.
func look(ctx context.Context, node api.NodeClient, after time.Duration) (*api.StatusReply, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(after):
	}
	return node.Status(ctx, &api.StatusRequest{})
}

// Busy returns how long this machine's processors have been busy since it was booted.
func Busy() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	var user, nice, system, idle, iowait, irq, softirq time.Duration
	_, err = fmt.Sscanf(string(text), "cpu %d %d %d %d %d %d %d",
		&user, &nice, &system, &idle, &iowait, &irq, &softirq)
	const tick = 10 * time.Millisecond
	return (user + nice + system + irq + softirq) * tick, err
}

// fill starts the sandboxes, several at once.
func (b *Restart) fill(ctx context.Context, node api.NodeClient) (*api.StatusReply, error) {
	g, started := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for n := range b.N {
		g.Go(func() error {
			_, err := node.Start(started, &api.StartRequest{
				Id: fmt.Sprintf("restart-%d", n), MemoryMib: 64, WaitMs: 60_000,
			})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	fmt.Fprintf(b.Out, "restart  %d sandboxes are started\n", b.N)
	return node.Status(ctx, &api.StatusRequest{})
}

// end ends the sandboxes and the agent. Sandboxes that are left hold their VFs, so it says so.
func (b *Restart) end(a *agentProcess) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	_, err := a.node.Drain(ctx, &api.DrainRequest{Cancel: true, Once: true})
	a.kill()
	if err != nil {
		return fmt.Errorf("sandboxes are left: %w", err)
	}
	return nil
}

// Print shows the result for people.
func (r *RestartResult) Print(w io.Writer) {
	fmt.Fprintf(w, "%d %s sandboxes, %d of them stopped: %d adopted, %d ended\n",
		r.N, r.Driver, r.Stopped, r.Adopted, r.Ended)
	fmt.Fprintf(w, "serves after %.0f ms, first adopted %.0f, last %.0f, settled %.0f\n",
		r.Serves, r.FirstAdopted, r.LastAdopted, r.Settled)
	fmt.Fprintf(w,
		"the processors worked for %.0f ms; all had ended %.0f ms after they were told to\n",
		r.CPU, r.Drained)
	fmt.Fprintf(w, "capacity %d → %d MiB, of it reserved %d → %d at its first answer\n",
		r.CapacityBefore, r.CapacityAfter, r.ReservedBefore, r.ReservedAtOnce)
}
