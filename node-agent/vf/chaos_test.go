//go:build failpoint

package vf_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/failpoint"
	"github.com/fastiov/fastiov/node-agent/procfs"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/node-agent/vf/vftest"
	"golang.org/x/sys/unix"
)

// The chaos test kills an agent again and again, each time at a seeded failpoint, and starts the
// next agent on what is left.
//
// Three kinds of process take part. The test itself arms, counts and judges. The agent (this binary
// once more) is a pool with a small workload: it leases, starts holders, ends them and returns. The
// holders (this binary again) stand for VMMs: each takes the lock of its VF's group and keeps it
// until it is killed. A holder outlives its agent, as a microVM does.
//
// A holder that finds its group taken has met a double lease and writes a violation. After every
// kill the next agent must find every lease whose holder lives. When all kills are done, everything
// is returned and every VF must be idle; then the host is undone.
//
// FASTIOV_TEST_CHAOS_SEED repeats a run, FASTIOV_TEST_CHAOS_KILLS sets its length.

const (
	chaosRole = "FASTIOV_TEST_CHAOS_ROLE" // agent, drain, undo or holder
	chaosDir  = "FASTIOV_TEST_CHAOS_DIR"
	chaosSeed = "FASTIOV_TEST_CHAOS_SEED"
	chaosLen  = "FASTIOV_TEST_CHAOS_KILLS"
	treeKills = 25 // kills per host; a fresh host lets the first steps be killed too
)

// life is the pipe whose other end the test holds: a holder reads it to its end.
var life *os.File

// agentOfChaos plays the part that this process was started for.
func agentOfChaos() bool {
	role := os.Getenv(chaosRole)
	if role == "" {
		return false
	}
	if err := playRole(role, os.Getenv(chaosDir)); err != nil {
		fmt.Fprintln(os.Stderr, "chaos", role+":", err)
		os.Exit(1)
	}
	return true
}

func playRole(role, dir string) error {
	if role == "holder" {
		return holder(dir, os.Args[1], os.Args[2], os.Args[3])
	}
	life = os.NewFile(3, "life")
	tree, err := vftest.New(dir)
	if err != nil {
		return err
	}
	if role == "undo" {
		return vf.Undo(tree.Config())
	}
	return agent(tree, role == "drain")
}

// holder waits for its agent's word, takes the group and keeps it. If its agent dies before the
// word, the holder ends too and the VF is untouched.
func holder(dir, bdf, group, sandbox string) error {
	if n, _ := os.NewFile(3, "gate").Read(make([]byte, 1)); n == 0 {
		return nil
	}
	f, err := vftest.Open(group)
	if err != nil {
		tree, newErr := vftest.New(dir)
		if newErr != nil {
			return newErr
		}
		tree.Violation("%s: %s found %s taken: a double lease", sandbox, bdf, group)
		return nil
	}
	defer f.Close()
	_, _ = os.Stdout.Write([]byte("h"))                // the agent may have gone: fine
	_, _ = os.NewFile(4, "life").Read(make([]byte, 1)) // ends when it or the test is killed
	return nil
}

// A tenant is a sandbox: a directory entry that stands for its cgroup, and its holder.
type tenant struct {
	lease vf.Lease
	owner vf.Owner
}

// agent lives an agent's life: it adopts or ends what is left, then works until it is killed or, to
// drain, returns all and checks.
func agent(tree *vftest.Tree, drain bool) error {
	cfg := tree.Config()
	cfg.NetdevVFs = 2
	pool, err := vf.Open(context.Background(), cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	var mu sync.Mutex
	tenants := []tenant{}
	for _, l := range pool.Leases() {
		if alive(l.Owner) && !drain {
			tenants = append(tenants, tenant{l, l.Owner})
			continue
		}
		end(l.Owner)
		pool.Return(l)
	}
	if drain {
		return drained(pool)
	}
	var workers sync.WaitGroup
	for w := range 3 {
		random := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(w)))
		workers.Go(func() {
			for range 40 {
				turn(tree, pool, random, &mu, &tenants)
			}
		})
	}
	workers.Wait()
	return nil
}

// turn either starts a tenant or ends one.
func turn(tree *vftest.Tree, pool *vf.Pool, random *rand.Rand, mu *sync.Mutex, tenants *[]tenant) {
	mu.Lock()
	if n := len(*tenants); n > 0 && random.IntN(2) == 0 {
		i := random.IntN(n)
		t := (*tenants)[i]
		*tenants = append((*tenants)[:i], (*tenants)[i+1:]...)
		mu.Unlock()
		end(t.owner)
		pool.Return(t.lease)
		return
	}
	mu.Unlock()
	want := vf.Want{}
	if random.IntN(4) == 0 {
		want.Driver, want.Kept = vf.Netdev, random.IntN(2) == 0
	}
	if random.IntN(4) == 0 {
		want.Set = func(s *vf.Settings) { s.VLAN = 7 }
	}
	name := fmt.Sprintf("s%d-%d", os.Getpid(), random.Uint32())
	l, err := pool.Lease(vf.Owner{Kind: vf.Sandbox, Name: name}, want)
	if err != nil {
		return
	}
	owner, gate, err := startHolder(tree.Dir, l)
	if err != nil {
		pool.Return(l)
		return
	}
	if err := pool.SetOwner(l, owner); err != nil {
		gate.release() // without the word the holder ends by itself
		pool.Return(l)
		return
	}
	gate.open()
	mu.Lock()
	*tenants = append(*tenants, tenant{l, owner})
	mu.Unlock()
}

type gate struct{ word, held *os.File }

func (g gate) release() { g.word.Close(); g.held.Close() }

// open gives the word and waits until the holder holds (or has found the group taken).
func (g gate) open() {
	_, _ = g.word.Write([]byte("g"))
	_, _ = g.held.Read(make([]byte, 1))
	g.release()
}

func startHolder(dir string, l vf.Lease) (vf.Owner, gate, error) {
	wordRead, word, err := os.Pipe()
	if err != nil {
		return vf.Owner{}, gate{}, err
	}
	holds, heldWrite, err := os.Pipe()
	if err != nil {
		return vf.Owner{}, gate{}, err
	}
	held := l.Group
	if l.Driver == vf.Netdev { // it has no group; this file of the VF takes a lock as well
		held = filepath.Join(dir, "sys/bus/pci/devices", l.BDF, "config")
	}
	cmd := exec.Command(os.Args[0], l.BDF, held, l.Owner.Name)
	cmd.Env = []string{chaosRole + "=holder", chaosDir + "=" + dir}
	cmd.ExtraFiles = []*os.File{wordRead, life} // as 3 and 4
	cmd.Stdout = heldWrite
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	wordRead.Close()
	heldWrite.Close()
	if err != nil {
		return vf.Owner{}, gate{}, err
	}
	go func() { _ = cmd.Wait() }()
	ticks, err := procfs.StartTicks(cmd.Process.Pid)
	owner := l.Owner
	owner.PID, owner.StartTicks = cmd.Process.Pid, ticks
	return owner, gate{word, holds}, err
}

func alive(o vf.Owner) bool {
	ticks, err := procfs.StartTicks(o.PID)
	return o.PID != 0 && err == nil && ticks == o.StartTicks
}

// end kills an owner's process and returns when it has gone.
func end(o vf.Owner) {
	fd, err := unix.PidfdOpen(o.PID, 0)
	if err != nil || !alive(o) {
		return
	}
	defer unix.Close(fd)
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if n == 1 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// drained waits until every VF is idle.
func drained(pool *vf.Pool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for range pool.Watch(ctx) {
		all := pool.Snapshot()
		if n := count(pool, vf.Idle); n == len(all) && n == vftest.IGB.VFs {
			return nil
		}
	}
	return fmt.Errorf("VFs are lost: %+v", pool.Snapshot())
}

// Every VF survives every kill, and none ever has two tenants.
func TestChaos(t *testing.T) {
	seed, kills := chaosNumber(chaosSeed, uint64(time.Now().UnixNano())), chaosNumber(chaosLen, 500)
	t.Logf("seed %d: repeat with %s=%d", seed, chaosSeed, seed)
	c := &chaos{t: t, random: rand.New(rand.NewPCG(seed, 0)), at: map[failpoint.Name]int{}}
	begin := time.Now()
	for done := uint64(0); done < kills; {
		done += c.host(min(treeKills, kills-done))
		fmt.Printf("chaos  %5.1fs  %d of %d kills\n", time.Since(begin).Seconds(), done, kills)
	}
	if t.Failed() {
		return
	}
	t.Logf(
		"%d kills in %s: %d leases found again, %d of them adopted; 0 double leases, 0 lost VFs; kills by failpoint: %v",
		kills, time.Since(begin).Round(time.Second), c.found, c.adopted, c.at)
	for _, name := range failpoint.VFs {
		if c.at[name] == 0 && kills >= 500 {
			t.Errorf("no kill at %s", name)
		}
	}
}

func chaosNumber(env string, fallback uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(env), 10, 64); err == nil {
		return n
	}
	return fallback
}

type chaos struct {
	t              *testing.T
	random         *rand.Rand
	at             map[failpoint.Name]int
	hosts          int
	found, adopted int
}

// onlyOnce lists the steps that a host sees once, so each is the first kill of some hosts.
var onlyOnce = []failpoint.Name{failpoint.PrepareUnbound, failpoint.PrepareOverride,
	failpoint.PrepareBound, failpoint.PrepareNetwork}

// host plays on one fresh host until it has seen that many kills, then drains and undoes it.
func (c *chaos) host(kills uint64) uint64 {
	tree := makeTree(c.t, vftest.IGB)
	if c.hosts%2 == 0 { // someone had VFs before
		if err := tree.CreateVFs(vftest.IGB.BDF, vftest.IGB.VFs); err != nil {
			c.t.Fatal(err)
		}
	}
	before := picture(c.t, tree)
	generations := map[string]uint64{}
	first := onlyOnce[c.hosts/2%len(onlyOnce)]
	c.hosts++
	var seen uint64
	for seen < kills {
		name := failpoint.VFs[c.random.IntN(len(failpoint.VFs))]
		role, hit := "agent", 1+c.random.IntN(12)
		if first != "" {
			name, first, hit = first, "", 1+c.random.IntN(vftest.IGB.VFs)
		} else if strings.HasPrefix(string(name), "vf-undo") {
			role, hit = "undo", 1
		} else if strings.HasPrefix(string(name), "vf-open") {
			hit = 1
		}
		if role == "undo" {
			c.run(tree, "drain", "") // nothing is undone under a tenant
			clear(generations)
		}
		if c.run(tree, role, fmt.Sprintf("%s:%d", name, hit)) {
			seen++
			c.at[name]++
		}
		c.journalHolds(tree, generations)
	}
	c.run(tree, "drain", "")
	c.run(tree, "undo", "")
	if after := picture(c.t, tree); after != before {
		c.t.Errorf("found:\n%s\nafter the undo:\n%s", before, after)
	}
	return seen
}

// staysHeld reports whether a holder has the group of bdf. An agent that was killed while it reset
// the VF and started a child leaves the group to the child until its exec; staysHeld waits for
// that.
func staysHeld(tree *vftest.Tree, bdf string) bool {
	for begin := time.Now(); tree.Held(bdf); time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > 2*time.Second {
			return true
		}
	}
	return false
}

// run lives one agent's life and reports whether the failpoint ended it.
func (c *chaos) run(tree *vftest.Tree, role, arm string) (killed bool) {
	c.t.Helper()
	read, hold, err := os.Pipe()
	if err != nil {
		c.t.Fatal(err)
	}
	// The holders read the other end of the pipe, so they end when the test has ended.
	c.t.Cleanup(func() { hold.Close() })
	defer read.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{chaosRole + "=" + role, chaosDir + "=" + tree.Dir, failpoint.Env + "=" + arm}
	cmd.ExtraFiles = []*os.File{read}
	out, err := cmd.CombinedOutput()
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	killed = status.Signaled() && status.Signal() == syscall.SIGKILL
	if err != nil && !(killed && arm != "") {
		c.t.Fatalf("the %s armed with %q ended with %v:\n%s", role, arm, err, out)
	}
	return killed
}

// journalHolds checks between two lives: every entry can be read, no generation goes back, and
// every VF that is held is leased.
func (c *chaos) journalHolds(tree *vftest.Tree, generations map[string]uint64) {
	c.t.Helper()
	files, err := filepath.Glob(filepath.Join(tree.Dir, "run/vf/*.json"))
	if err != nil {
		c.t.Fatal(err)
	}
	leased := map[string]bool{}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			c.t.Fatal(err)
		}
		var e struct {
			State      string
			Generation uint64
			Owner      vf.Owner
		}
		if err := json.Unmarshal(data, &e); err != nil {
			c.t.Fatalf("%s holds %q: %v", path, data, err)
		}
		bdf := strings.TrimSuffix(filepath.Base(path), ".json")
		if e.Generation < generations[bdf] {
			c.t.Errorf("the generation of %s went from %d back to %d", bdf,
				generations[bdf], e.Generation)
		}
		generations[bdf] = e.Generation
		if e.State == "leased" {
			c.found++
			leased[bdf] = true
			if alive(e.Owner) {
				c.adopted++
			}
		}
	}
	for i := range vftest.IGB.VFs {
		bdf := fmt.Sprintf("0000:01:10.%d", i)
		if !leased[bdf] && staysHeld(tree, bdf) {
			c.t.Errorf("%s is held and the journal knows of no lease", bdf)
		}
	}
	if v := tree.Violations(); v != "" {
		c.t.Fatal(v)
	}
}
