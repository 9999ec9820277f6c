package command

import (
	"context"
	"os"
	"strings"

	"github.com/fastiov/fastiov/node-agent/agent"
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

// passedThrough leases each sandbox a VF, and lets the agent act on what happens to its VFs.
func passedThrough(
	ctx context.Context, n *node, f *nodeFlags, cfg *agent.Config,
) (_ startup.NetPath, err error) {
	if cfg.Starter.Network, err = f.network(); err != nil {
		return nil, err
	}
	pool, err := vf.Open(ctx, vf.Config{
		PFs: f.pfs, NumVFs: f.numVFs, VF: f.vfs, Node: machineID(), Run: f.runDir, Log: n.log,
	})
	if err != nil {
		return nil, err
	}
	n.onClose(pool.Close)
	cfg.VFs = pool
	return netvf.Path{Pool: pool}, nil
}

func machineID() string {
	// Without one, all nodes derive the same MACs; their networks are their own.
	b, _ := os.ReadFile("/etc/machine-id")
	return strings.TrimSpace(string(b))
}
