package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/beside"
	"github.com/fastiov/fastiov/node-agent/cni/cnitest"
	"github.com/fastiov/fastiov/node-agent/netns"
	"github.com/fastiov/fastiov/node-agent/sandbox/cgroup"
)

// CNI measures the CNI plugin over emulated VFs whose interfaces are ends of veth pairs, beside
// ptp, the plugin of the CNI project that makes such pairs. It is run in a network namespace of its
// own.
type CNI struct {
	Rounds int    // of VERSION and ADD, in turns
	AtOnce int    // ADDs that begin together
	Peers  string // folder with ptp and host-local
	Out    io.Writer
}

// CNIResult holds the CPU time of an exec, in ms, and what ADDs at once take and do.
type CNIResult struct {
	Rounds  int     `json:"rounds"`
	Version CNIPair `json:"version_cpu_ms"`
	Add     CNIPair `json:"add_cpu_ms"` // fastiov's has the agent's part; ptp's has host-local's
	Plugin  CNIOne  `json:"add_plugin_cpu_ms"`
	AtOnce  struct {
		ADDs          int      `json:"adds"`
		CPUs          int      `json:"cpus"`
		Netdev        CNIBurst `json:"fastiov_netdev"` // each is moved, one at a time
		VFIO          CNIBurst `json:"fastiov_vfio"`
		PTP           CNIBurst `json:"ptp"`
		SysfsWrites   int      `json:"sysfs_writes"`
		FilesReplaced float64  `json:"files_replaced_per_add"`
	} `json:"at_once"`
	Execs uint64 `json:"execs_per_add"` // the plugin's own is one
}

// CNIBurst holds what ADDs take that begin together.
type CNIBurst struct {
	WallMs float64 `json:"wall_ms"`
	CPUMs  float64 `json:"cpu_ms"` // of plugins, agent and bench
	Ratio  float64 `json:"wall_by_cpu_time_and_cpus"`
}

// CNIPair compares the two plugins.
type CNIPair struct {
	Fastiov Quantiles `json:"fastiov"`
	PTP     Quantiles `json:"ptp"`
	Ratio   float64   `json:"ratio"` // of the medians
}

// CNIOne is fastiov's alone.
type CNIOne struct {
	Fastiov Quantiles `json:"fastiov"`
}

// aCNI is one run.
type aCNI struct {
	*CNI
	dir    string
	driver string // of the VFs that ADDs ask for
	plugin string
	node   *cnitest.Node
	boxes  []string // paths of network namespaces
}

// Run starts an agent, measures and ends it.
func (b *CNI) Run(ctx context.Context) (r *CNIResult, err error) {
	dir, err := os.MkdirTemp("", "fastiov-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	run := &aCNI{CNI: b, dir: dir, driver: "netdev", plugin: filepath.Join(dir, "fastiov")}
	if err := run.install(ctx); err != nil {
		return nil, err
	}
	tree, err := cnitest.Make(filepath.Join(dir, "host"))
	if err != nil {
		return nil, err
	}
	cnitest.FollowBinding(tree)
	cfg := cnitest.Config(tree, b.AtOnce, b.AtOnce)
	if run.node, err = cnitest.Start(cfg, tree, cnitest.Wires(tree)); err != nil {
		return nil, err
	}
	defer func() {
		if run.node != nil { // the second start may fail
			run.node.Stop()
		}
	}()
	defer run.unbox()
	if err := run.box(max(b.AtOnce, 2)); err != nil {
		return nil, err
	}
	r = &CNIResult{Rounds: b.Rounds}
	for _, part := range []func(context.Context, *CNIResult) error{
		run.versions, run.adds, run.burst, run.execs,
	} {
		if err := part(ctx, r); err != nil {
			return nil, err
		}
	}
	run.node.Stop() // the next one keeps all VFs by vfio
	cfg.NetdevVFs, run.driver = 0, "vfio"
	if run.node, err = cnitest.Start(cfg, tree, cnitest.Wires(tree)); err != nil {
		return nil, err
	}
	r.AtOnce.VFIO, err = run.together(run.ours)
	return r, errors.Join(err, run.deleted(run.ours))
}

func (b *aCNI) install(ctx context.Context) error {
	program, err := beside.CNI.Open(ctx)
	if err != nil {
		return err
	}
	defer program.Close()
	to, err := os.OpenFile(b.plugin, os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, program)
	return errors.Join(err, to.Close())
}

// box makes network namespaces with paths.
func (b *aCNI) box(n int) error {
	for i := range n {
		file, err := netns.New()
		if err != nil {
			return err
		}
		path := filepath.Join(b.dir, fmt.Sprint("netns", i))
		from := fmt.Sprintf("/proc/self/fd/%d", file.Fd())
		err = os.WriteFile(path, nil, 0o600)
		if err == nil {
			err = unix.Mount(from, path, "", unix.MS_BIND, "")
		}
		file.Close()
		if err != nil {
			return err
		}
		b.boxes = append(b.boxes, path)
	}
	return nil
}

func (b *aCNI) unbox() {
	for _, path := range b.boxes {
		_ = unix.Unmount(path, unix.MNT_DETACH)
	}
}

// call is a plugin's exec.
func (b *aCNI) call(plugin, command string, box int, conf string) *exec.Cmd {
	cmd := exec.Command(plugin)
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_IFNAME=eth0", "CNI_PATH=" + b.Peers,
		fmt.Sprint("CNI_CONTAINERID=c", box), "CNI_NETNS=" + b.boxes[box]}
	cmd.Stdin = strings.NewReader(conf)
	return cmd
}

func (b *aCNI) ours(command string, box int) *exec.Cmd {
	return b.call(b.plugin, command, box, fmt.Sprintf(`{"cniVersion":"1.0.0","name":"ours",
		"type":"fastiov","runDir":%q,"driver":%q,"ipam":{"type":"fastiov","ranges":[{"subnet":"10.1.0.0/16"}],
		"routes":[{"dst":"0.0.0.0/0"}]}}`, filepath.Join(b.dir, "host/run"), b.driver))
}

func (b *aCNI) theirs(command string, box int) *exec.Cmd {
	return b.call(filepath.Join(b.Peers, "ptp"), command, box, fmt.Sprintf(`{"cniVersion":"1.0.0",
		"name":"theirs","type":"ptp","ipam":{"type":"host-local","subnet":"10.2.0.0/16",
		"routes":[{"dst":"0.0.0.0/0"}],"dataDir":%q}}`, filepath.Join(b.dir, "ptp")))
}

// run runs a plugin and returns its CPU time and that of its children.
func run(cmd *exec.Cmd) (time.Duration, error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, io.Discard
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, out.Bytes())
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// own returns the CPU time of this process, the agent's in it.
func own() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func inMs(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func pairOf(ours, theirs []float64) CNIPair {
	p := CNIPair{Fastiov: QuantilesOf(ours), PTP: QuantilesOf(theirs)}
	p.Ratio = p.Fastiov.Median / p.PTP.Median
	return p
}

// versions runs VERSION, which is an exec and nothing else.
func (b *aCNI) versions(_ context.Context, r *CNIResult) error {
	var ours, theirs []float64
	for range b.Rounds {
		a, errA := run(b.ours("VERSION", 0))
		p, errP := run(b.theirs("VERSION", 0))
		if err := errors.Join(errA, errP); err != nil {
			return err
		}
		ours, theirs = append(ours, inMs(a)), append(theirs, inMs(p))
	}
	r.Version = pairOf(ours, theirs)
	return nil
}

// adds runs ADD and DEL. What the agent takes is counted with ours; it makes VFs ready beside.
func (b *aCNI) adds(ctx context.Context, r *CNIResult) error {
	var ours, plugin, theirs []float64
	for range b.Rounds {
		if err := b.node.Idle(ctx, b.AtOnce); err != nil {
			return err
		}
		before := own()
		a, errA := run(b.ours("ADD", 0))
		agent := own() - before
		p, errP := run(b.theirs("ADD", 1))
		_, errD := run(b.ours("DEL", 0))
		_, errE := run(b.theirs("DEL", 1))
		if err := errors.Join(errA, errP, errD, errE); err != nil {
			return err
		}
		ours, plugin = append(ours, inMs(a+agent)), append(plugin, inMs(a))
		theirs = append(theirs, inMs(p))
	}
	r.Add, r.Plugin = pairOf(ours, theirs), CNIOne{QuantilesOf(plugin)}
	return nil
}

// burst runs ADDs that begin together, and counts what they do to files.
func (b *aCNI) burst(ctx context.Context, r *CNIResult) error {
	if err := b.node.Idle(ctx, b.AtOnce); err != nil {
		return err
	}
	journal, err := watchRenames(filepath.Join(b.dir, "host/run/vf"))
	if err != nil {
		return err
	}
	defer unix.Close(journal)
	writes := b.node.Tree.Writes()
	if r.AtOnce.Netdev, err = b.together(b.ours); err != nil {
		return err
	}
	renames, err := countRenames(journal)
	if err != nil {
		return err
	}
	r.AtOnce.ADDs, r.AtOnce.CPUs = b.AtOnce, runtime.NumCPU()
	r.AtOnce.SysfsWrites = b.node.Tree.Writes() - writes
	r.AtOnce.FilesReplaced = float64(renames) / float64(b.AtOnce)
	if err := b.deleted(b.ours); err != nil {
		return err
	}
	if err := b.node.Idle(ctx, b.AtOnce); err != nil {
		return err
	}
	if r.AtOnce.PTP, err = b.together(b.theirs); err != nil {
		return err
	}
	return b.deleted(b.theirs)
}

func (b *aCNI) together(of func(command string, box int) *exec.Cmd) (r CNIBurst, err error) {
	before, begin := own(), time.Now()
	took, errs := make([]time.Duration, b.AtOnce), make([]error, b.AtOnce)
	var all sync.WaitGroup
	for i := range b.AtOnce {
		all.Go(func() { took[i], errs[i] = run(of("ADD", i)) })
	}
	all.Wait()
	wall, cpu := time.Since(begin), own()-before
	for _, t := range took {
		cpu += t
	}
	r = CNIBurst{WallMs: inMs(wall), CPUMs: inMs(cpu)}
	r.Ratio = r.WallMs / (r.CPUMs / float64(runtime.NumCPU()))
	return r, errors.Join(errs...)
}

func (b *aCNI) deleted(of func(command string, box int) *exec.Cmd) error {
	for i := range b.AtOnce {
		if _, err := run(of("DEL", i)); err != nil {
			return err
		}
	}
	return nil
}

// watchRenames notices each file that is renamed to a name in dir.
func watchRenames(dir string) (watch int, err error) {
	watch, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return 0, err
	}
	_, err = unix.InotifyAddWatch(watch, dir, unix.IN_MOVED_TO)
	return watch, err
}

func countRenames(watch int) (n int, err error) {
	buffer := make([]byte, 64<<10)
	for {
		size, err := unix.Read(watch, buffer)
		if errors.Is(err, unix.EAGAIN) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		for at := 0; at < size; n++ {
			name := int(buffer[at+12]) | int(buffer[at+13])<<8 // the length of its name
			at += unix.SizeofInotifyEvent + name
		}
	}
}

// execs counts the execs of an ADD, by all processes that it starts.
func (b *aCNI) execs(ctx context.Context, r *CNIResult) error {
	root, err := cgroup.Open(jailBench)
	if err != nil {
		return err
	}
	if err := b.node.Idle(ctx, b.AtOnce); err != nil {
		return err
	}
	calls, err := countCalls(root, func(n int) error {
		group, err := root.Create(fmt.Sprint("cni-", n), cgroup.Limits{MemoryMiB: 64, PIDs: 32})
		if err != nil {
			return err
		}
		defer func() { _ = group.Kill() }()
		dir, err := group.Open()
		if err != nil {
			return err
		}
		defer dir.Close()
		cmd := b.ours("ADD", n)
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
		_, err = run(cmd)
		return err
	})
	r.Execs = calls.Execs
	for n := range counted {
		_, delErr := run(b.ours("DEL", n))
		err = errors.Join(err, delErr)
	}
	return err
}

// Print writes the result for a person.
func (r *CNIResult) Print(w io.Writer) {
	row := func(name string, p CNIPair) {
		fmt.Fprintf(w, "%-8s fastiov %5.2f ms of CPU (p90 %5.2f), ptp %5.2f (p90 %5.2f): %.2f ×\n",
			name, p.Fastiov.Median, p.Fastiov.P90, p.PTP.Median, p.PTP.P90, p.Ratio)
	}
	row("VERSION", r.Version)
	row("ADD", r.Add)
	fmt.Fprintf(w, "         of it the plugin %.2f ms; %d exec\n", r.Plugin.Fastiov.Median, r.Execs)
	fmt.Fprintf(w, "%d ADDs at once on %d CPUs: %d writes to sysfs, %.2f files replaced each\n",
		r.AtOnce.ADDs, r.AtOnce.CPUs, r.AtOnce.SysfsWrites, r.AtOnce.FilesReplaced)
	for _, one := range []struct {
		name string
		CNIBurst
	}{{"netdev", r.AtOnce.Netdev}, {"vfio", r.AtOnce.VFIO}, {"ptp", r.AtOnce.PTP}} {
		fmt.Fprintf(w, "%8s %.0f ms, %.0f ms of CPU: %.2f ×\n", one.name, one.WallMs, one.CPUMs,
			one.Ratio)
	}
}
