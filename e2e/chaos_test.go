//go:build failpoint

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/failpoint"
	"github.com/fastiov/fastiov/testbed"
)

// The chaos of the whole agent: real VFs, real drivers, and VMMs that own VFs. An agent works until
// it dies at a seeded failpoint, and the next one starts with what is left, again and again. After
// each life and at each start, the host is compared with the invariants (chaos_judge_test.go): no
// VF has two tenants, none is lost, and every lease is adopted or its VF reset.
//
// FASTIOV_TEST_CHAOS_SEED repeats a run. FASTIOV_TEST_CHAOS_KILLS and
// FASTIOV_TEST_CHAOS_QEMU_KILLS set how long it is.

const (
	chaosSeed = "FASTIOV_TEST_CHAOS_SEED"
	chaosLen  = "FASTIOV_TEST_CHAOS_KILLS"
	chaosQEMU = "FASTIOV_TEST_CHAOS_QEMU_KILLS"
	chaosRun  = "/run/fastiov-chaos"
)

var chaosNetwork = []string{
	"--pf", "igb", "--run-dir", chaosRun, "--state-dir", chaosRun + "/state", "--metrics", "",
	"--subnet", "10.0.2.0/24", "--first-address", "10.0.2.100", "--gateway", "10.0.2.2", "--dns",
	"10.0.2.3",
}

func TestChaosOfTheAgentWithABareVMM(t *testing.T) {
	testbed.Inside(t, testbed.Needs{NICs: 1, Env: []string{chaosSeed, chaosLen}},
		func(t *testing.T) {
			c := newChaos(t, chaosLen, 500, "--sandbox", "bare")
			c.request = &api.StartRequest{MemoryMib: 64}
			c.workers, c.turns = 3, 6
			c.run()
		})
}

// A chaos is one run: the player. It knows of the sandboxes only what the agents told it.
type chaos struct {
	t       *testing.T
	random  *rand.Rand
	agent   []string          // the command line of every agent
	request *api.StartRequest // each start's request
	workers int
	turns   int // of each worker in a life
	wanted  int
	judge   judge

	mu sync.Mutex
	// sandboxes that an agent reported as started and that nobody asked to stop
	ready   map[string]bool
	started int
	kills   map[failpoint.Name]int
}

func newChaos(t *testing.T, length string, kills int, sandbox ...string) *chaos {
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv(chaosSeed), 10, 64); err == nil {
		seed = n
	}
	if n, err := strconv.Atoi(os.Getenv(length)); err == nil {
		kills = n
	}
	t.Logf("seed %d: repeat with %s=%d", seed, chaosSeed, seed)
	return &chaos{
		t: t, random: rand.New(rand.NewPCG(seed, 0)), wanted: kills,
		agent: append(append([]string{"agent"}, chaosNetwork...), sandbox...),
		ready: map[string]bool{}, kills: map[failpoint.Name]int{}, judge: newJudge(t),
	}
}

// points are the failpoints on the way of a sandbox with a VF by vfio and with the pool's settings.
var points = slices.DeleteFunc(slices.Clone(failpoint.VFs), func(name failpoint.Name) bool {
	return slices.Contains([]failpoint.Name{
		failpoint.NetdevUnbound, failpoint.NetdevBound, failpoint.LeaseSet}, name)
})

// run kills as often as wanted. Then it drains the last agent, checks that every VF is back, and
// undoes everything.
func (c *chaos) run() {
	begin := time.Now()
	for done := 0; done < c.wanted && !c.t.Failed(); {
		if c.kill() {
			done++
			fmt.Printf(
				"chaos  %5.1fs  %d of %d kills, %d sandboxes started, %d adopted, %d ended\n",
				time.Since(begin).Seconds(), done, c.wanted, c.started,
				c.judge.adopted, c.judge.ended)
		}
	}
	c.clearHost("")
	if c.t.Failed() {
		return
	}
	c.t.Logf(
		"%d kills in %s: %d sandboxes started, %d leases found again: %d adopted, %d ended and their VF reset; 0 double leases, 0 lost VFs; kills by failpoint: %v",
		c.wanted, time.Since(begin).Round(time.Second), c.started, c.judge.adopted+c.judge.ended,
		c.judge.adopted, c.judge.ended, c.kills)
	for _, name := range points {
		if c.kills[name] == 0 && c.wanted >= 500 {
			c.t.Errorf("no kill at %s", name)
		}
	}
}

// kill arms a random failpoint and plays a life that may reach it. It returns whether the failpoint
// was reached.
func (c *chaos) kill() bool {
	name := points[c.random.IntN(len(points))]
	arm := func(most int) string { return fmt.Sprintf("%s:%d", name, 1+c.random.IntN(most)) }
	killed := false
	switch name {
	case failpoint.UndoBegin, failpoint.UndoVF, failpoint.UndoRestored, failpoint.UndoForgotten:
		killed = c.clearHost(arm(1))
	case failpoint.OpenUndoRecorded, failpoint.OpenAutoprobe, failpoint.OpenCreated,
		failpoint.PrepareUnbound, failpoint.PrepareOverride, failpoint.PrepareBound,
		failpoint.PrepareNetwork:
		// Some steps are only taken on a host as it was found. Half of the times, the kernel's own
		// driver holds its VFs.
		c.clearHost("")
		if name == failpoint.PrepareUnbound || c.random.IntN(2) == 0 {
			c.judge.createVFs()
		}
		killed = c.life(arm(3))
	case failpoint.OpenLocked:
		killed = c.life(arm(1))
	default:
		killed = c.life(arm(3))
	}
	if killed {
		c.kills[name]++
	}
	c.judge.atRest()
	return killed
}

// life is the life of one armed agent. It works until it dies or its workers have had their turns;
// then it is killed.
func (c *chaos) life(arm string) (killed bool) {
	before := c.judge.leases()
	a := c.start(arm)
	node, hangUp := a.dial(c.t)
	if node != nil {
		defer hangUp()
		c.judge.afterStart(node, before, c.ready)
		c.work(a, node)
	}
	a.end()
	return a.killed(c.t, arm)
}

// work makes the workers start and stop sandboxes until they have had their turns or the agent has
// died.
func (c *chaos) work(a *process, node api.NodeClient) {
	var workers sync.WaitGroup
	for range c.workers {
		random := rand.New(rand.NewPCG(c.random.Uint64(), 0))
		workers.Go(func() {
			for turn := 0; turn < c.turns && !a.ended(); turn++ {
				c.turn(node, random)
			}
		})
	}
	workers.Wait()
}

// turn stops one of the sandboxes or starts one.
func (c *chaos) turn(node api.NodeClient, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if id := c.victim(random); id != "" {
		if _, err := node.Stop(ctx, &api.StopRequest{Id: id}); err != nil &&
			status.Code(err) != codes.Unavailable {
			c.t.Errorf("stop of %s: %v", id, err)
		}
		return
	}
	request := &api.StartRequest{Id: fmt.Sprintf("chaos-%x", random.Uint64()),
		Image: c.request.Image, MemoryMib: c.request.MemoryMib}
	_, err := node.Start(ctx, request)
	switch status.Code(err) {
	case codes.OK:
		c.mu.Lock()
		c.ready[request.Id] = true
		c.started++
		c.mu.Unlock()
	case codes.ResourceExhausted, codes.Unavailable: // all VFs are leased, or the agent has died
	default:
		c.t.Errorf("start of %s: %v", request.Id, err) // a VF that another process holds ends here
	}
}

// victim returns, half of the times, one of the ready sandboxes to stop.
func (c *chaos) victim(random *rand.Rand) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if random.IntN(2) == 0 {
		return ""
	}
	for id := range c.ready {
		delete(c.ready, id)
		return id
	}
	return ""
}

// clearHost ends every sandbox with an agent that is never killed, and undoes what agents did to
// the host. The undo is armed.
func (c *chaos) clearHost(arm string) (killed bool) {
	before := c.judge.leases()
	a := c.start("")
	node, hangUp := a.dial(c.t)
	if node == nil {
		c.t.Fatalf("an agent that nothing kills has not started:\n%s", a.log.String())
	}
	c.judge.afterStart(node, before, c.ready)
	c.judge.drained(node)
	clear(c.ready)
	hangUp()
	a.end()
	// the second undo finishes what the first did not, or has nothing to do
	for _, arm := range []string{arm, ""} {
		undo := c.command(arm, "down", "--undo", "--run-dir", chaosRun)
		undo.wait()
		killed = undo.killed(c.t, arm) || killed
	}
	c.judge.undone()
	return killed
}

func (c *chaos) start(arm string) *process { return c.command(arm, c.agent...) }

// A process is this binary as the command, armed or not.
type process struct {
	cmd  *exec.Cmd
	log  bytes.Buffer // may be read once it has ended
	done chan struct{}
	ours bool // the test ended it
}

func (c *chaos) command(arm string, args ...string) *process {
	c.t.Helper()
	p := &process{cmd: fastiov(c.t, args...), done: make(chan struct{})}
	p.cmd.Env = append(p.cmd.Env, failpoint.Env+"="+arm)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p
}

func (p *process) wait() { <-p.done }

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// end ends it as a failpoint would.
func (p *process) end() {
	if !p.ended() {
		p.ours = true
		_ = p.cmd.Process.Kill()
	}
	p.wait()
}

// killed reports whether it reached its failpoint. Any other end that the test did not cause is an
// error.
func (p *process) killed(t *testing.T, arm string) bool {
	t.Helper()
	how := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	met := how.Signaled() && how.Signal() == syscall.SIGKILL && !p.ours
	if met && arm == "" || !met && !p.ours && how != 0 {
		t.Errorf("%v, armed with %q, ended with %v:\n%s", p.cmd.Args[1:], arm,
			p.cmd.ProcessState, p.log.String())
	}
	return met
}

// dial returns the agent's API once it is served and everything of a former agent is settled. It
// returns nil if the agent ends before.
func (p *process) dial(t *testing.T) (node api.NodeClient, hangUp func()) {
	t.Helper()
	for late := time.Now().Add(time.Minute); time.Now().Before(late); time.Sleep(
		20 * time.Millisecond) {
		if p.ended() {
			return nil, nil
		}
		node, hangUp, err := dialNode(chaosRun)
		if err != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		st, err := node.Status(ctx, &api.StatusRequest{})
		cancel()
		if err == nil && st.Settled() {
			return node, hangUp
		}
		hangUp() // not settled yet, or the socket belongs to a killed agent
	}
	p.end()
	t.Fatalf("the agent does not answer:\n%s", p.log.String())
	return nil, nil
}
