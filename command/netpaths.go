package command

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fastiov/fastiov/node-agent/agent"
	"github.com/fastiov/fastiov/node-agent/netpath/bridge"
	"github.com/fastiov/fastiov/node-agent/netpath/scon"
	netvf "github.com/fastiov/fastiov/node-agent/netpath/vf"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// A netpath opens a way of sandboxes to a network, or returns nil where they have none. It enters
// into cfg what else the agent needs of it. A new one is a package below node-agent/netpath and a
// function here; the rows of drivers name theirs.
type netpath func(
	ctx context.Context, n *node, f *nodeFlags, cfg *agent.Config,
) (startup.NetPath, error)

// unconnected leases nothing.
func unconnected(
	context.Context, *node, *nodeFlags, *agent.Config,
) (startup.NetPath, error) {
	return nil, nil
}

// passedThrough leases each sandbox a VF by vfio.
func passedThrough(
	ctx context.Context, n *node, f *nodeFlags, cfg *agent.Config,
) (startup.NetPath, error) {
	pool, err := n.openVFs(ctx, f, f.netdevVFs, cfg)
	return netvf.Path{Pool: pool}, err
}

// asNetdevs leases each sandbox a VF as a network interface, and keeps all of them as such.
func asNetdevs(
	ctx context.Context, n *node, f *nodeFlags, cfg *agent.Config,
) (startup.NetPath, error) {
	if f.netdevVFs > 0 {
		return nil, errors.New("--netdev-vfs: with --fastiov netdev all VFs are; leave it out")
	}
	cfg.Netdevs = true
	pool, err := n.openVFs(ctx, f, math.MaxInt, cfg)
	return netvf.Path{Pool: pool, Netdev: true}, err
}

// openVFs opens the pool, of which so many VFs are kept as network interfaces, and lets the agent
// act on what happens to them.
func (n *node) openVFs(
	ctx context.Context, f *nodeFlags, netdevs int, cfg *agent.Config,
) (pool *vf.Pool, err error) {
	if cfg.Starter.Network, err = f.network(); err != nil {
		return nil, err
	}
	pool, err = vf.Open(ctx, vf.Config{
		PFs: f.pfs, NumVFs: f.numVFs, NetdevVFs: netdevs, VF: f.vfs, Node: machineID(),
		Run: f.runDir, Log: n.log,
	})
	if err != nil {
		return nil, err
	}
	n.onClose(pool.Close)
	cfg.VFs = pool
	return pool, nil
}

// bridged leases each sandbox a port of the bridge, which its driver has opened.
func bridged(
	_ context.Context, n *node, _ *nodeFlags, cfg *agent.Config,
) (startup.NetPath, error) {
	cfg.Starter.Network = n.bridge.Network
	return n.bridge, nil
}

// openBridge makes the bridge, which is closed after the driver that plugs sandboxes in.
func (n *node) openBridge(f *nodeFlags) (err error) {
	n.bridge, err = bridge.Open(bridge.Config{
		Name: nodeName(f.runDir), Dir: bridgeDir(f.runDir), Log: n.log,
		Network: startup.Network{Subnet: f.subnet, First: f.first, Gateway: f.gateway, DNS: f.dns},
	})
	if err == nil {
		n.onClose(func() {
			n.bridge.Close()
			if err := scon.DetachGone(scon.Records()); err != nil {
				n.log.Warn("the express path stays", "err", err)
			}
		})
	}
	return err
}

// openScon gives the bridge its express path, or takes off one that a former agent gave it.
func (n *node) openScon(f *nodeFlags, cfg *agent.Config) error {
	name := nodeName(f.runDir)
	switch {
	case f.scon && n.bridge == nil:
		return fmt.Errorf("--scon is for sandboxes on the bridge, and with --sandbox %s and"+
			" --fastiov %s there are none: leave it out", f.sandbox.name, n.arm)
	case !f.scon && slices.Contains(scon.Attached(scon.Records()), name):
		own, err := scon.DetachOwn(scon.Records(), name, f.runDir)
		switch {
		case err != nil:
			n.log.Warn("the bridge's express path is not, or not wholly, taken off", "err", err)
		case own:
			n.log.Info("the express path that the bridge had is taken off; --scon keeps it")
		default:
			n.log.Info("the bridge keeps the express path that `fastiov scon attach` gave it")
		}
		return nil
	case !f.scon:
		return nil
	}
	s, err := scon.Attach(scon.Config{Bridge: name, Records: scon.Records(), Pins: scon.Pins,
		Settings: true, Owner: f.runDir, Log: n.log})
	if err != nil {
		return fmt.Errorf("--scon: %w", err)
	}
	n.onClose(s.Close)
	cfg.Express = s.State
	return nil
}

// nodeName returns the name of this node's bridge, tables and containers: one for each run
// directory.
func nodeName(runDir string) string {
	if runDir == usualRunDir {
		return "fastiov0"
	}
	return fmt.Sprintf("fio%.3x", sha256.Sum256([]byte(runDir)))
}

func bridgeDir(runDir string) string     { return filepath.Join(runDir, "bridge") }
func containersDir(runDir string) string { return filepath.Join(runDir, "containers") }

func machineID() string {
	// Without one, all nodes derive the same MACs; their networks are their own.
	b, _ := os.ReadFile("/etc/machine-id")
	return strings.TrimSpace(string(b))
}
