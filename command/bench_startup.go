package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/bench/ablation"
	"github.com/fastiov/fastiov/bench/kept"
	"github.com/fastiov/fastiov/command/settings"
	"github.com/fastiov/fastiov/functions"
	"github.com/fastiov/fastiov/functions/inputs"
	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/doctor"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/build"
	"github.com/fastiov/fastiov/testbed"
)

// roundsFile holds the rounds that were played, in the folder of --plot.
const roundsFile = "rounds.jsonl"

// benchStartup compares arms by whole cold starts. It makes a node for each round: here, where a
// node can be, or in the testbed.
func benchStartup() *cobra.Command {
	var (
		b        = ablation.Bench{Arms: []arm.Arm{arm.None, arm.All}, Skip: idleUnder}
		sandbox  = &drivers[0]
		store    string
		simStart time.Duration
		folder   string
		asJSON   bool
	)
	cmd := &cobra.Command{Use: "startup [-- FLAGS OF `up`]",
		Short: "Compare arms by rounds of cold starts, in turn, and draw the FastIOV paper's figures"}
	f := cmd.Flags()
	f.Var(armsFlag{&b.Arms}, "arms",
		"arms, separated by spaces: named ones, or axes, as in 'none all all,r=0 nonet'")
	f.StringSliceVar(&b.Functions, "functions", []string{"hello"}, "sample functions to call")
	f.StringVar(&store, "storage", "", "URL of the storage server that some of them need, where"+
		" `fastiov storage samples` has been (default in the testbed: one of this process)")
	f.IntSliceVar(&b.N, "n", []int{1, 4, 7}, "how many at once")
	f.IntSliceVar(&b.MemoryMiB, "mem", []int{256}, "MiB of each function")
	f.IntVar(&b.Rounds, "rounds", 5, "how many rounds of each")
	f.Var(driverFlag{&sandbox}, "sandbox", "what functions run in: "+driversExplained())
	f.DurationVar(&simStart, "sim-start", paperStart,
		"with --sandbox sim: how long 200 starts at once take on the paper's stock software")
	f.StringVar(&folder, "plot", "",
		"folder that keeps the rounds and gets the figures and index.html; what it has is not measured again")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := fits(&b, sandbox, args); err != nil {
			return err
		}
		b.Out = cmd.ErrOrStderr()
		b.Setting = ablation.Setting{Sandbox: sandbox.name, Version: version, Place: "this machine",
			Simulated: sandbox.programmed != nil, Flags: strings.Join(args, " "),
			Machine: bench.Machine()}
		if b.Setting.Simulated {
			b.Setting.Flags += " --sim-start " + simStart.String()
		}
		if store != "" {
			b.Setting.Flags += " --storage " + store
		}
		b.Setting.Flags = strings.TrimSpace(b.Setting.Flags)
		play, end, err := player(cmd, &b, sandbox, store, append(args, "--sandbox", sandbox.name,
			"--sim-start", simStart.String()))
		if err != nil {
			return err
		}
		defer end()
		b.Folder = folder
		if b.Kept, err = kept.Open[*ablation.Round](folder, roundsFile); err != nil {
			return err
		}
		defer b.Kept.Close()
		b.Play = play
		result, err := b.Run(cmd.Context())
		if err != nil {
			return err
		}
		if folder != "" {
			if err := result.Draw(folder, commandLine()); err != nil {
				return err
			}
			fmt.Fprintf(b.Out, "startup  see %s\n", filepath.Join(folder, ablation.Page))
		}
		if err := show(cmd, result, asJSON); err != nil {
			return err
		}
		if !result.Whole() {
			return errors.New("not all calls were answered, or something is left")
		}
		return nil
	}
	return cmd
}

// commandLine returns the command that was typed, for the page to name.
func commandLine() string {
	words := []string{"fastiov"}
	for _, word := range os.Args[1:] {
		if word == "" || strings.ContainsAny(word, " \t\n'\"\\$`*?[](){}<>|&;#~!") {
			word = testbed.Quote(word)
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// fits refuses what cannot be measured.
func fits(b *ablation.Bench, sandbox *driver, args []string) error {
	if len(b.N) == 0 || len(b.MemoryMiB) == 0 || b.Rounds < 1 || slices.Min(b.N) < 1 ||
		slices.Min(b.MemoryMiB) < 1 {
		return errors.New("--n, --mem and --rounds want 1 or more")
	}
	if !sandbox.images && sandbox.programmed == nil {
		return fmt.Errorf("--sandbox %s starts no application: use qemu or sim", sandbox.name)
	}
	for _, word := range args {
		name, _, _ := strings.Cut(word, "=")
		if name == "--fastiov" || name == "--sandbox" {
			return fmt.Errorf("%s follows from --arms and --sandbox: leave it out", name)
		}
	}
	for _, a := range b.Arms {
		if a.Zeroed > 0 && !sandbox.guest && sandbox.programmed == nil {
			return fmt.Errorf("--arms %s: %s has no memory that can be zeroed ahead: leave it"+
				" out, or use --sandbox qemu", a, sandbox.name)
		}
		if a.Netdev && !sandbox.netdevs {
			return fmt.Errorf("--arms netdev: %s has no network interface of this kernel: leave"+
				" it out, or use --sandbox containerd", sandbox.name)
		}
	}
	for _, name := range b.Functions {
		f, err := functionNamed(name, "")
		if err != nil {
			return err
		}
		if least := slices.Min(b.MemoryMiB); f.MemoryMB > least && sandbox.programmed == nil {
			return fmt.Errorf("--mem %d: %s wants %d MiB", least, name, f.MemoryMB)
		}
	}
	if len(b.Orders()) == 0 {
		return errors.New("nothing is to be measured: --functions wants one that works under" +
			" one of --arms")
	}
	return nil
}

// functionNamed returns a sample function that uses the storage server at that URL.
func functionNamed(name, store string) (functions.Function, error) {
	var names []string
	for _, f := range functions.All(store) {
		if f.Name == name {
			return f, nil
		}
		names = append(names, f.Name)
	}
	return functions.Function{}, fmt.Errorf("no sample function %q; there are %s", name,
		listed(names, "and"))
}

// stores reports whether a sample function needs a storage server.
func stores(name string) bool {
	f, err := functionNamed(name, "")
	_, stores := f.Parameters["storage"]
	return err == nil && stores
}

// idleUnder reports whether a function has no network that it needs.
func idleUnder(a arm.Arm, function string) bool { return a.NoNet && stores(function) }

// player returns what plays a round, and what ends it after the last one: a process of this binary,
// which makes the node, here or in the testbed. A testbed that was not up is ended then.
func player(cmd *cobra.Command, b *ablation.Bench, sandbox *driver, store string, words []string) (
	play func(context.Context, ablation.Order) (*ablation.Round, error), end func(), err error,
) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	here := func(ctx context.Context, line []string, out io.Writer) error {
		process := exec.CommandContext(ctx, self, line...)
		process.Cancel = func() error { return process.Process.Signal(os.Interrupt) }
		process.Stdout, process.Stderr = out, b.Out
		return process.Run()
	}
	run, end := here, func() {}
	storeFor := func(string) string { return store }
	away, err := openTestbed(cmd, b, sandbox)
	switch {
	case err != nil:
		return nil, nil, err
	case away != nil:
		run, end = away.run, away.end
		b.Setting.Place = fmt.Sprintf("a testbed (%v)", away.host.Config())
		words = append(slices.Concat(awayFlags, awayVFs, awayDefaults), words...)
		if store == "" && slices.ContainsFunc(b.Functions, stores) {
			if storeFor, err = away.store(b.Functions); err != nil {
				end()
				return nil, nil, err
			}
		}
	case store == "" && sandbox.programmed == nil && slices.ContainsFunc(b.Functions, stores):
		return nil, nil, errors.New("--functions: some need a storage server that sandboxes" +
			" reach; name it by --storage")
	case !sandbox.guest:
		words = append(words, "--config", settings.NoFile)
	}
	return func(ctx context.Context, order ablation.Order) (*ablation.Round, error) {
		what, err := json.Marshal(order)
		if err != nil {
			return nil, err
		}
		var out bytes.Buffer
		line := append([]string{"bench", startupRound}, words...)
		line = append(line, "--"+storeOfRound, storeFor(order.Arm), string(what))
		if err := run(ctx, line, &out); err != nil {
			return nil, err
		}
		round := &ablation.Round{}
		return round, json.Unmarshal(out.Bytes(), round)
	}, end, nil
}

// A measuredTestbed is a testbed in which rounds are played.
type measuredTestbed struct {
	host   *testbed.Host
	guest  bool   // sandboxes are microVMs
	before string // of the command of a round, in a shell
	log    io.Writer
	stop   func() // the storage server
}

// openTestbed returns the testbed that is up, or boots one if this machine cannot be a node with
// these arms. It returns nil if rounds are played here.
func openTestbed(cmd *cobra.Command, b *ablation.Bench, sandbox *driver) (
	*measuredTestbed, error,
) {
	netdevs := slices.ContainsFunc(b.Arms, func(a arm.Arm) bool { return a.Netdev })
	if !sandbox.guest && (!netdevs || doctor.HasCard()) {
		return nil, nil
	}
	ctx, progress := cmd.Context(), cmd.ErrOrStderr()
	cache, err := build.Open("", progress)
	if err != nil {
		return nil, err
	}
	defer cache.Close()
	state, err := testbed.Look(awayName)
	up := err == nil && state.State == "ready"
	if !up && sandbox.guest &&
		isNode(ctx, cache, slices.ContainsFunc(b.Arms, arm.Arm.ByVFIO), progress) {
		return nil, nil
	}
	config := testbed.Config{Name: awayName}
	taps := slices.ContainsFunc(b.Arms, func(a arm.Arm) bool { return a.Tap })
	if sandbox.kernel && !taps { // fastiov's kernel has no nftables, which a bridge needs
		config.Kernel = testbed.PatchedKernel
	}
	if up {
		opened, err := testbed.Open(ctx, awayName)
		if err != nil {
			return nil, err
		}
		config = opened.Config()
		opened.Close()
	}
	host, err := bringUp(cmd, config)
	if err != nil {
		return nil, err
	}
	t := &measuredTestbed{host: host, guest: sandbox.guest, log: progress,
		stop: func() {}}
	err = fillImages(ctx, host, cache, image.DebianKernel, b.Arms...)
	if err == nil && !sandbox.guest {
		err = t.takeContainerd(ctx)
	}
	if err != nil {
		t.end()
		return nil, err
	}
	return t, nil
}

// takeContainerd gives the testbed this machine's programs that run containers.
func (t *measuredTestbed) takeContainerd(ctx context.Context) error {
	const folder = "containers"
	t.before = "modprobe igbvf && PATH=/share/" + folder + ":$PATH "
	return t.host.Fill(ctx, folder, func(dir string) error {
		for _, name := range []string{"containerd", "containerd-shim-runc-v2", "runc"} {
			path, err := exec.LookPath(name)
			if err != nil {
				return fmt.Errorf("%w; install containerd and runc", err)
			}
			content, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), content, 0o755)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// store serves the inputs of functions on this machine's loopback, and returns the URL by which
// sandboxes of an arm reach it.
func (t *measuredTestbed) store(names []string) (url func(arm string) string, err error) {
	dir, err := os.MkdirTemp("", "fastiov-storage-")
	if err != nil {
		return nil, err
	}
	server, listener, err := openStorage("127.0.0.1:0", "storage", dir)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	go func() { _ = server.Serve(listener) }()
	t.stop = func() { _ = errors.Join(server.Close(), os.RemoveAll(dir)) }
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	for _, name := range names {
		f, err := functionNamed(name, "")
		for _, key := range f.Parameters {
			if err == nil && slices.Contains(inputs.Keys, key) {
				err = putObject(context.Background(), "http://"+listener.Addr().String()+"/"+key,
					inputs.Make(key))
			}
		}
		if err != nil {
			t.stop()
			return nil, err
		}
	}
	return func(name string) string {
		host := awayMachine
		if a, err := arm.Parse(name); err == nil && t.onVFs(a) {
			host = awayGateway
		}
		return "http://" + net.JoinHostPort(host, port)
	}, nil
}

// onVFs reports whether sandboxes of an arm have VFs.
func (t *measuredTestbed) onVFs(a arm.Arm) bool {
	return a.Netdev || t.guest && a.ByVFIO()
}

func (t *measuredTestbed) run(ctx context.Context, line []string, out io.Writer) error {
	words := t.before + testbed.Quote(append([]string{awayBinary}, line...)...)
	code, err := t.host.Run(ctx, words, nil, out, t.log)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d in the testbed", code)
	}
	return err
}

func (t *measuredTestbed) end() {
	t.stop()
	// also after an interrupt
	if err := t.host.End(context.Background(), t.log); err != nil {
		fmt.Fprintf(t.log, "startup  the testbed is left: %v\n", err)
	}
}
