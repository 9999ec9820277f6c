//go:build failpoint

package attach_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/beside"
	"github.com/fastiov/fastiov/node-agent/cni/attach"
	"github.com/fastiov/fastiov/node-agent/cni/cnitest"
	"github.com/fastiov/fastiov/node-agent/failpoint"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/node-agent/vf/vftest"
)

// The chaos test is a runtime: it executes the plugin, ADD and DEL, over an emulated host whose
// agent (this binary once more) is killed again and again at a seeded failpoint, or is away.
// Sometimes it kills the plugin, removes a namespace before the DEL, forgets a DEL, or repeats one.
// Names of containers and paths of namespaces come again, so that a late DEL meets a new holder.
//
// FASTIOV_TEST_CHAOS_SEED repeats a run, FASTIOV_TEST_CNI_PAIRS sets its length.
const (
	chaosRole    = "FASTIOV_TEST_CNI_ROLE" // the emulated host, for the agent
	chaosControl = "FASTIOV_TEST_CNI_FORGET"
	chaosSeed    = "FASTIOV_TEST_CHAOS_SEED"
	chaosPairs   = "FASTIOV_TEST_CNI_PAIRS"
	chaosVFs     = 16
	chaosKept    = 8
	runtimes     = 4 // at a time
	containers   = 4 // whose names each of them uses
)

// playedRole plays the agent, if this process was started for that.
func playedRole() bool {
	dir := os.Getenv(chaosRole)
	if dir == "" {
		return false
	}
	if err := chaosAgent(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// chaosAgent runs until its input ends. The control forgets the journal of the agent before it.
func chaosAgent(dir string) error {
	tree, err := vftest.New(dir)
	if err != nil {
		return err
	}
	if os.Getenv(chaosControl) != "" {
		entries, _ := filepath.Glob(filepath.Join(tree.Config().Run, "vf", "*.json"))
		for _, e := range entries {
			_ = os.Remove(e)
		}
	}
	node, err := cnitest.Start(cnitest.Config(tree, chaosVFs, chaosKept), tree, files{tree})
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	node.Stop()
	return nil
}

// files are Wires that move the emulated netdevs: the folder "in" has a file for each VF that is in
// a container, with the path of its namespace, and "moved" the netdevs that are.
type files struct{ *vftest.Tree }

func (f files) in(device string) string    { return filepath.Join(f.Dir, "in", device) }
func (f files) moved(device string) string { return filepath.Join(f.Dir, "moved", device) }
func (f files) netdev(device string) string {
	return filepath.Join(f.Dir, "sys/bus/pci/devices", device, "net",
		vftest.NetdevOf(cnitest.PF, device))
}

// alone is held by one process at a time, as the kernel's lock of all interfaces. A process that is
// killed holds it no more.
func (f files) alone() (done func(), err error) {
	lock, err := os.OpenFile(filepath.Join(f.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return func() { lock.Close() }, unix.Flock(int(lock.Fd()), unix.LOCK_EX)
}

func (f files) Plug(p attach.Port) (int, error) {
	done, err := f.alone()
	if err != nil {
		return 0, err
	}
	defer done()
	if _, err := os.Stat(p.Netns); err != nil {
		return 0, err
	}
	if has, err := os.ReadFile(f.in(p.Device)); err == nil {
		f.Violation("%s is given to %s, and %s has it", p.Device, p.Netns, has)
	}
	whole := filepath.Join(f.Dir, "new")
	err = errors.Join(os.WriteFile(whole, []byte(p.Netns), 0o600),
		os.Rename(whole, f.in(p.Device)))
	if err != nil || p.Driver == vf.VFIO {
		return 1500, err
	}
	return 1500, os.Rename(f.netdev(p.Device), f.moved(p.Device))
}

func (files) Announce(context.Context, attach.Port) error { return nil }

func (f files) Address(attach.Port) error { return nil }

func (f files) Check(p attach.Port) error {
	if has, err := os.ReadFile(f.in(p.Device)); err != nil || string(has) != p.Netns {
		return fmt.Errorf("%s is in %q, not in %s: %w", p.Device, has, p.Netns, err)
	}
	return nil
}

func (f files) Unplug(p attach.Port) error { return f.back(p.Device, p.Netns) }

// back takes a VF out of a namespace, if it is in that one.
func (f files) back(device, netns string) error {
	done, err := f.alone()
	if err != nil {
		return err
	}
	defer done()
	has, err := os.ReadFile(f.in(device))
	if errors.Is(err, fs.ErrNotExist) || err == nil && string(has) != netns {
		return nil
	}
	err = os.Rename(f.moved(device), f.netdev(device))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Remove(f.in(device))
}

// A chaos is one run.
type chaos struct {
	tree   *vftest.Tree
	plugin string
	forget bool

	mu      sync.Mutex
	has     map[string]string // VF → the container that an ADD gave it to
	wrong   []string
	kills   map[string]int
	pairs   atomic.Int64
	refused atomic.Int64 // ADDs without an agent or a VF, or whose plugin was killed
	gone    atomic.Int64 // namespaces that went before their DEL
	over    chan struct{}
}

func newChaos(t *testing.T, forget bool) *chaos {
	tree, err := cnitest.Make(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := &chaos{tree: tree, forget: forget, has: map[string]string{}, kills: map[string]int{},
		over: make(chan struct{}), plugin: filepath.Join(t.TempDir(), "fastiov")}
	for _, dir := range []string{"in", "moved", "netns"} {
		if err := os.Mkdir(filepath.Join(tree.Dir, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	program, err := beside.CNI.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	text, err := io.ReadAll(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.plugin, text, 0o755); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *chaos) fault(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

// points are the failpoints that an agent passes that is not undone.
var points = slices.DeleteFunc(slices.Concat(failpoint.VFs, failpoint.CNI),
	func(name failpoint.Name) bool {
		others := []failpoint.Name{failpoint.OwnerJournalled, failpoint.PrepareNetwork}
		return strings.HasPrefix(string(name), "vf-undo") || slices.Contains(others, name)
	})

// agents starts one agent after the other until the run is over; each is killed, at its failpoint
// or some time later.
func (c *chaos) agents(random *rand.Rand) {
	for {
		select {
		case <-c.over:
			return
		case <-time.After(time.Duration(random.IntN(30)) * time.Millisecond): // it is away
		}
		at, hit := points[random.IntN(len(points))], 1+random.IntN(40)
		if strings.HasPrefix(string(at), "vf-open") { // it passes them once
			hit = 1
		}
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), chaosRole+"="+c.tree.Dir,
			fmt.Sprintf("%s=%s:%d", failpoint.Env, at, hit))
		if c.forget {
			cmd.Env = append(cmd.Env, chaosControl+"=1")
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
		input, _ := cmd.StdinPipe()
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			c.fault("the agent: %v", err)
			return
		}
		late := time.AfterFunc(time.Duration(1000+random.IntN(2000))*time.Millisecond,
			func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		input.Close()
		if !late.Stop() {
			at = "any time"
		}
		if code := cmd.ProcessState.ExitCode(); code > 0 && !c.forget {
			c.fault("the agent ended with %d: %s", code, said.String())
		}
		c.mu.Lock()
		c.kills[string(at)]++
		c.mu.Unlock()
	}
}

// exec runs the plugin, and kills it if it takes longer than that.
func (c *chaos) exec(command, container, keys string, most time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.plugin)
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + container,
		"CNI_NETNS=" + c.netns(container), "CNI_IFNAME=eth0", "CNI_PATH=/nonexistent"}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(
		`{"cniVersion":"1.1.0","name":"net","type":"fastiov","runDir":%q%s}`,
		c.tree.Config().Run, keys))
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", command, container, err, out)
	}
	return out, err
}

func (c *chaos) netns(container string) string {
	return filepath.Join(c.tree.Dir, "netns", container)
}

// remove ends a namespace: what is in it comes back to the host, as the kernel has it.
func (c *chaos) remove(container string) {
	netns := c.netns(container)
	done, err := files{c.tree}.alone() // so that nothing comes into it meanwhile
	if err == nil {
		err = os.Remove(netns)
		done()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.fault("%v", err)
	}
	devices, _ := os.ReadDir(filepath.Join(c.tree.Dir, "in"))
	for _, d := range devices {
		if has, _ := os.ReadFile(files{c.tree}.in(d.Name())); string(has) == netns {
			_ = files{c.tree}.back(d.Name(), netns)
		}
	}
}

var wants = []string{
	``, `,"driver":"vfio"`, `,"vlan":7,"trust":"on"`, `,"driver":"vfio","mac":"02:00:00:00:00:07"`,
	`,"ipam":{"type":"fastiov","ranges":[{"subnet":"10.1.0.0/24"},{"subnet":"fd00::/64"}]}`,
}

// add starts a container, and reports whether it has a VF.
func (c *chaos) add(random *rand.Rand, container string) bool {
	if err := os.WriteFile(c.netns(container), nil, 0o600); err != nil {
		c.fault("%v", err)
		return false
	}
	keys := wants[random.IntN(len(wants))]
	if random.IntN(4) == 0 {
		keys = fmt.Sprintf(`,"deviceID":"0000:01:%02x.%d"`, 0x10+random.IntN(2), random.IntN(8))
	}
	most := time.Minute
	if random.IntN(20) == 0 {
		most = time.Duration(random.IntN(8000)) * time.Microsecond
	}
	out, err := c.exec("ADD", container, keys, most)
	if err == nil {
		err = c.attached(container, out)
	}
	if err != nil {
		c.refused.Add(1)
	}
	return err == nil
}

// attached notes what an ADD gave, unless some other container has it.
func (c *chaos) attached(container string, out []byte) error {
	var result current.Result
	if err := json.Unmarshal(out, &result); err != nil || len(result.Interfaces) != 1 {
		return fmt.Errorf("the result is %s: %w", out, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	device := result.Interfaces[0].PciID
	if other := c.has[device]; other != "" {
		c.wrong = append(c.wrong, fmt.Sprintf("%s is given to %s, and %s has it",
			device, container, other))
	}
	c.has[device] = container
	return nil
}

// end ends a container, whose ADD may have failed.
func (c *chaos) end(random *rand.Rand, container string, attached bool) {
	if attached {
		c.still(container)
		c.pairs.Add(1)
	}
	early := random.IntN(4) == 0
	c.mu.Lock() // before the pool may have them back
	maps.DeleteFunc(c.has, func(_, has string) bool { return has == container })
	c.mu.Unlock()
	if early {
		c.gone.Add(1)
		c.remove(container)
	}
	if random.IntN(50) == 0 && early { // the runtime forgets the DEL
		return
	}
	for range 1 + random.IntN(2) {
		if random.IntN(20) == 0 { // the plugin is killed in the middle, and asked once more
			_, _ = c.exec("DEL", container, "", time.Duration(random.IntN(8000))*time.Microsecond)
		}
		if _, err := c.del(container); err != nil {
			c.fault("%v", err)
		}
	}
	c.remove(container)
}

// del repeats a DEL while agents are killed under it, as runtimes do.
func (c *chaos) del(container string) (out []byte, err error) {
	for range 50 {
		if out, err = c.exec("DEL", container, "", time.Minute); err == nil {
			return out, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return out, err
}

// still fails the run if somebody has taken the container's VF away.
func (c *chaos) still(container string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for device, has := range c.has {
		in, err := os.ReadFile(files{c.tree}.in(device))
		if has == container && (err != nil || string(in) != c.netns(container)) {
			c.wrong = append(c.wrong, fmt.Sprintf("%s of %s is in %q, %v",
				device, container, in, err))
		}
	}
}

// play runs so many pairs, and returns what went wrong.
func (c *chaos) play(t *testing.T, seed, pairs uint64) []string {
	var agents, workers sync.WaitGroup
	agents.Go(func() { c.agents(rand.New(rand.NewPCG(seed, 0))) })
	for w := range runtimes {
		random, lives := rand.New(rand.NewPCG(seed, uint64(w)+1)), map[string]bool{}
		workers.Go(func() {
			for uint64(c.pairs.Load()) < pairs && len(c.faults()) == 0 {
				container := fmt.Sprintf("c%d-%d", w, random.IntN(containers))
				if lives[container] || !c.add(random, container) {
					c.end(random, container, lives[container])
					lives[container] = false
				} else {
					lives[container] = true
				}
			}
		})
	}
	workers.Wait()
	close(c.over)
	agents.Wait()
	wrong := c.faults()
	node, err := cnitest.Start(cnitest.Config(c.tree, chaosVFs, chaosKept), c.tree, files{c.tree})
	if err != nil {
		return append(wrong, err.Error())
	}
	defer node.Stop()
	for w := range runtimes {
		for n := range containers {
			c.remove(fmt.Sprintf("c%d-%d", w, n))
			if _, err := c.del(fmt.Sprintf("c%d-%d", w, n)); err != nil {
				wrong = append(wrong, err.Error())
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := node.Idle(ctx, chaosVFs); err != nil {
		wrong = append(wrong, "VFs are lost: "+err.Error())
	}
	return wrong
}

func (c *chaos) faults() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	wrong := slices.Clone(c.wrong)
	if v := c.tree.Violations(); v != "" {
		wrong = append(wrong, v)
	}
	return wrong
}

func number(env string, fallback uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(env), 10, 64); err == nil {
		return n
	}
	return fallback
}

// No VF is lost and none is given twice, whatever is killed, gone or away.
func TestChaos(t *testing.T) {
	seed := number(chaosSeed, uint64(time.Now().UnixNano()))
	pairs := number(chaosPairs, 1000)
	t.Logf("seed %d: repeat with %s=%d", seed, chaosSeed, seed)
	c := newChaos(t, false)
	begin := time.Now()
	for _, wrong := range c.play(t, seed, pairs) {
		t.Error(wrong)
	}
	kills := 0
	for _, n := range c.kills {
		kills += n
	}
	t.Logf("%d pairs in %s, %d ADDs refused, %d namespaces gone before their DEL", c.pairs.Load(),
		time.Since(begin).Round(time.Second), c.refused.Load(), c.gone.Load())
	t.Logf("%d agents killed: %v", kills, c.kills)
	for _, name := range points {
		if c.kills[string(name)] == 0 && pairs >= 10000 {
			t.Errorf("no kill at %s", name)
		}
	}
}

// The control: agents that forget the journal give VFs twice.
func TestChaosWithoutAJournal(t *testing.T) {
	c := newChaos(t, true)
	if wrong := c.play(t, 1, 10000); len(wrong) == 0 {
		t.Error("without a journal nothing went wrong: the run shows nothing")
	} else {
		t.Logf("after %d pairs: %s", c.pairs.Load(), wrong[0])
	}
}
