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

// A netpath connects sandboxes to a network. It makes the agent, since what it leases to sandboxes
// is reserved together with their memory.
type netpath func(
	ctx context.Context, n *node, f *nodeFlags, cfg agent.Config, memory int,
) (*agent.Agent, error)

// unconnected leases nothing.
func unconnected(
	_ context.Context, n *node, _ *nodeFlags, cfg agent.Config, memory int,
) (*agent.Agent, error) {
	cfg.Starter.Admission = startup.NewAdmission(memory, nil)
	a := agent.New(cfg)
	n.enter(a)
	return a, nil
}

// passedThrough leases each sandbox a VF, and lets the agent act on what happens to its VFs.
func passedThrough(
	ctx context.Context, n *node, f *nodeFlags, cfg agent.Config, memory int,
) (_ *agent.Agent, err error) {
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
	cfg.Starter.Admission = startup.NewAdmission(memory, netvf.Path{Pool: pool})
	a := agent.New(cfg)
	n.enter(a)
	n.follow(a)
	return a, nil
}

func machineID() string {
	// Without one, all nodes derive the same MACs; their networks are their own.
	b, _ := os.ReadFile("/etc/machine-id")
	return strings.TrimSpace(string(b))
}
