package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/fastiov/fastiov/node-agent/agent"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/doctor"
	"github.com/fastiov/fastiov/node-agent/fastiovd"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/kprobe"
	"github.com/fastiov/fastiov/node-agent/netpath/bridge"
	"github.com/fastiov/fastiov/node-agent/netpath/scon"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/qemu"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// A node is the agent and all it stands on. It is built in order and taken down in reverse;
// sandboxes outlive it, to be adopted.
type node struct {
	agent    *agent.Agent
	registry *prometheus.Registry
	metrics  *agent.Metrics
	log      *slog.Logger
	arm      arm.Arm        // how its sandboxes are started
	probe    *kprobe.Probe  // nil where nothing of a VF is seen
	cache    *image.Cache   // nil where nothing is pulled
	bridge   *bridge.Bridge // nil where sandboxes have no port of one
	microVMs *qemu.Driver   // nil where sandboxes are something else
	// The MiB that admission may hand out, if that was measured on an empty node.
	empty  int
	adopt  func()
	reload func() error // has what changed in its flags hold
	stops  []func()     // of its servers
	closers
}

// openNode builds the node and serves its API on the Unix socket in its run directory. Its caller
// holds the lock of that directory.
func openNode(ctx context.Context, f *nodeFlags, registry *prometheus.Registry,
	log *slog.Logger) (_ *node, err error) {
	collectSeldom()
	n := &node{registry: registry, log: log, reload: func() error { return nil }}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	n.metrics = agent.NewMetrics(n.registry)
	if n.arm, err = chooseArm(f, log); err != nil {
		return nil, err
	}
	images, err := n.openImages(ctx, f)
	if err != nil {
		return nil, err
	}
	if err := clearDrivers(ctx, f.runDir, f.sandbox, log); err != nil {
		return nil, err
	}
	driver, err := f.sandbox.open(ctx, n, f, images)
	if err != nil {
		return nil, err
	}
	if n.bridge == nil { // a former agent may have had one
		if err := bridge.Undo(bridgeDir(f.runDir)); err != nil {
			return nil, err
		}
		if err := scon.DetachGone(scon.Records()); err != nil { // others' bridges, too
			n.log.Warn("the express path of a bridge that is gone stays", "err", err)
		}
	}
	if n.agent, err = n.openAgent(ctx, f, driver, images); err != nil {
		return nil, err
	}
	n.registry.MustRegister(n.agent)
	if n.empty > 0 {
		if err := f.noteCapacity(n.empty); err != nil {
			return nil, err
		}
	}
	if err := n.serve(f.runDir, f.group); err != nil {
		return nil, err
	}
	if err := n.serveCNI(f.runDir); err != nil {
		return nil, err
	}
	if err := n.serveFar(&f.api); err != nil {
		return nil, err
	}
	log.Info("node ready", "driver", f.sandbox.name, "fastiov", n.arm)
	if err := answers(ctx, f.runDir); err != nil {
		return nil, err
	}
	n.adopt()
	return n, nil
}

// answers returns when the node API has answered once. Only then are sandboxes adopted: on a
// machine with few processors, hundreds of them would keep the first caller waiting.
func answers(ctx context.Context, runDir string) error {
	client, hangUp, err := dialNode(runDir)
	if err != nil {
		return err
	}
	defer hangUp()
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // of a machine that boots
	defer cancel()
	if _, err := client.Status(ctx, &api.StatusRequest{Brief: true}); err != nil {
		return fmt.Errorf("the node API does not answer at %s: %w", runDir, err)
	}
	return nil
}

// enter takes note of the sandboxes that a former agent left; n.adopt settles them, beside all
// else. Those that are not settled when the node closes are left to the next agent.
func (n *node) enter(a *agent.Agent) {
	ctx, letGo := context.WithCancelCause(context.Background())
	settle := a.Adopt(ctx)
	var settling sync.WaitGroup
	n.adopt = func() {
		settling.Go(func() {
			if adopted, ended := settle(); adopted+ended > 0 {
				n.log.Info("what a former agent left is settled", "adopted", adopted,
					"ended", ended)
			}
		})
	}
	n.onClose(func() {
		letGo(sandbox.ErrLetGo)
		settling.Wait()
	})
}

func (n *node) openImages(ctx context.Context, f *nodeFlags) (*image.Set, error) {
	if !f.sandbox.images {
		return nil, nil
	}
	if f.images != "" && f.guestKernel != image.DebianKernel {
		return nil, errors.New("--guest-kernel is of a guest that is made here:" +
			" with --images leave it out, and give it to `fastiov image export`")
	}
	cache, err := image.Open("", os.Stderr)
	if err == nil {
		n.onClose(cache.Close)
		n.cache = cache
		cache.Policy = f.pullPolicy
		cache.Fetched, cache.Pulled = n.metrics.Fetched, n.metrics.Pulled
		if cache.Builder, err = builder(); err != nil {
			return nil, err
		}
		n.reload = func() error { return f.registries.apply(cache) }
		if err := n.reload(); err != nil {
			return nil, err
		}
	}
	switch {
	case f.images == "" && err != nil:
		return nil, err
	case f.images == "":
		return cache.Set(ctx, f.bootKernel())
	case err != nil:
		n.log.Warn("no container images will be pulled", "err", err)
		return image.OpenSet(f.images)
	}
	set, err := image.OpenSet(f.images)
	if err == nil {
		set.PullTo(cache)
	}
	return set, err
}

// chooseArm returns how sandboxes are started, and switches the kernel to it before a VF is bound.
func chooseArm(f *nodeFlags, log *slog.Logger) (a arm.Arm, err error) {
	switch {
	case f.fastiov == "" && f.sandbox.guest && len(f.pfs) == 0 && !doctor.HasCard():
		log.Warn("no network card here has SR-IOV: microVMs have taps of a bridge, and no VFs")
		a = arm.Tap
	case f.fastiov == "" && f.sandbox.kernel:
		a = arm.Default()
	case f.fastiov == "":
		return arm.None, nil
	default:
		if a, err = arm.Parse(f.fastiov); err != nil {
			return a, fmt.Errorf("--fastiov: %w", err)
		}
	}
	if a.Tap && !f.sandbox.guest {
		return a, fmt.Errorf("--fastiov tap: only microVMs have taps, and %s makes none;"+
			" leave it out", f.sandbox.name)
	}
	if a.Netdev && !f.sandbox.netdevs {
		return a, fmt.Errorf("--fastiov netdev: only a container has a network interface of this"+
			" kernel, and %s makes none; leave it out", f.sandbox.name)
	}
	if !f.sandbox.kernel && a != arm.None && !a.NoNet && !a.Netdev {
		return a, fmt.Errorf("--fastiov %s is of the kernel, which %s has no use for: leave it out",
			a, f.sandbox.name)
	}
	if a.Zeroed > 0 && !(f.zeroesAhead && f.sandbox.guest) {
		return a, fmt.Errorf("--fastiov %s: a node cannot zero memory ahead, as it does not know"+
			" what will be started; use none, or compare %[1]s in `fastiov bench startup`", a)
	}
	if a.NoNet && !f.sandbox.images {
		return a, fmt.Errorf("--fastiov nonet: nothing is left of %s without a VF",
			f.sandbox.name)
	}
	if !f.sandbox.kernel {
		return a, nil
	}
	if a.Memory == fastiovd.TouchMap && f.hugePages {
		return a, errors.New("--huge-pages are not made when they are touched: leave it out," +
			" or use --fastiov with d=pagecache")
	}
	return a, a.Apply()
}

func (n *node) openAgent(
	ctx context.Context, f *nodeFlags, driver sandbox.Driver, images *image.Set,
) (*agent.Agent, error) {
	starter := &startup.Starter{
		OverheadMiB: f.overheadMiB(), RunDir: f.runDir, Driver: driver, Images: rootsOf{images},
		Deadlines: startup.Deadlines{
			Image: 5 * time.Minute, Wire: 10 * time.Second, Boot: f.boot, Init: time.Minute,
		},
		Reports: &startup.Reports{Dir: filepath.Join(f.stateDir, "reports"), Keep: 32},
		Log:     n.log,
	}
	memory, empty, err := f.capacity(len(starter.Records()) > 0)
	if err != nil {
		return nil, err
	}
	if empty {
		n.empty = memory
	}
	cfg := agent.Config{
		Version: version, Driver: f.sandbox.name, FastIOV: n.arm.String(),
		Starter: starter, Metrics: n.metrics, Log: n.log,
	}
	if images != nil {
		cfg.Images, cfg.Building = images.Have, images.Building
		cfg.GuestKernel = images.Guest.Release()
	}
	if n.cache != nil {
		cfg.Cache = n.cache.Usage
	}
	network := f.sandbox.network
	switch {
	case n.arm.NoNet:
		network = unconnected
	case n.arm.Tap:
		network = bridged
	case n.arm.Netdev:
		network = asNetdevs
	}
	path, err := network(ctx, n, f, &cfg)
	if err != nil {
		return nil, err
	}
	if err := n.openScon(f, &cfg); err != nil {
		return nil, err
	}
	starter.Admission = startup.NewAdmission(memory, path)
	a := agent.New(cfg)
	n.enter(a)
	if cfg.VFs != nil {
		n.follow(a)
	}
	return a, nil
}

// follow lets the agent act on what happens to its VFs until the node closes.
func (n *node) follow(a *agent.Agent) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Follow(ctx)
	}()
	n.onClose(func() {
		stop()
		<-done
	})
}

func (n *node) serve(runDir string, group int) error {
	listener, err := listenLocal(filepath.Join(runDir, nodeSocket), group)
	if err != nil {
		return err
	}
	n.serveOn(listener, api.NewServer(n.agent.Measured(), n.log))
	return nil
}

// serveFar serves the node API to other machines.
func (n *node) serveFar(f *apiFlags) error {
	if f.listen == "" {
		return nil
	}
	server, err := api.NewTLSServer(n.agent.Measured(), &f.keys, n.log)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		return fmt.Errorf("node API: %w; choose another address with --node-listen", err)
	}
	n.log.Info("node API ready", "address", listener.Addr())
	n.serveOn(listener, server)
	return nil
}

func (n *node) serveOn(listener net.Listener, server *api.Server) {
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			n.log.Error("node API", "err", err)
		}
	}()
	n.onStop(func() {
		server.Stop()
		<-served // which has closed the listener, and so removed its socket
	})
}

// onStop has a server stop with the others when the node closes: all at once, as each may wait long
// for its calls, and no other may take new ones meanwhile.
func (n *node) onStop(stop func()) {
	if n.stops = append(n.stops, stop); len(n.stops) > 1 {
		return
	}
	n.onClose(func() {
		var stopping sync.WaitGroup
		for _, stop := range n.stops {
			stopping.Go(stop)
		}
		stopping.Wait()
	})
}

// rootsOf finds runtimes in a set of images. Without one, every name is good: nothing is booted.
type rootsOf struct{ set *image.Set }

func (r rootsOf) Root(ctx context.Context, name, namespace string) (startup.Root, error) {
	if r.set == nil {
		return startup.Root{}, nil
	}
	rt, release, err := r.set.Use(ctx, name, namespace)
	root := startup.Root{Path: rt.Root, Layers: rt.Layers, Program: rt.Program, Pull: rt.Pull,
		Release: release}
	return root, err
}

func (r rootsOf) Hold(ctx context.Context, path string) (release func(), err error) {
	if r.set == nil {
		return nil, nil
	}
	return r.set.Hold(ctx, path)
}
