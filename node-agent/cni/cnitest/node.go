// Package cnitest makes a node whose VFs are emulated, and whose interfaces are real: each VF that
// is bound to its own driver is an end of a veth pair in this network namespace. So the CNI plugin
// can be run whole on a machine without a card. What it makes is root's to make.
package cnitest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"

	"github.com/fastiov/fastiov/node-agent/agent"
	"github.com/fastiov/fastiov/node-agent/cni"
	"github.com/fastiov/fastiov/node-agent/cni/attach"
	netvf "github.com/fastiov/fastiov/node-agent/netpath/vf"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/node-agent/vf/vftest"
)

// PF is the card of the nodes: 128 VFs, more than any test uses.
var PF = vftest.PF{BDF: "0000:01:00.0", Driver: "igb", VFDriver: "igbvf", Netdev: "pf1", VFs: 128}

// A Node is an agent with its emulated host, and the socket where it answers plugins.
type Node struct {
	Tree  *vftest.Tree
	Pool  *vf.Pool
	Agent *agent.Agent
	stop  func()
}

// Make makes an emulated host with the card, of which the pool takes so many VFs.
func Make(dir string) (*vftest.Tree, error) {
	tree, err := vftest.New(dir)
	if err != nil {
		return nil, err
	}
	return tree, tree.AddPF(PF)
}

// Config is that of a node's pool: vfs VFs of its card, kept of them as network interfaces.
func Config(tree *vftest.Tree, vfs, kept int) vf.Config {
	cfg := tree.Config()
	cfg.NumVFs, cfg.NetdevVFs = vfs, kept
	return cfg
}

// Start starts an agent on such a host.
func Start(cfg vf.Config, tree *vftest.Tree, wires attach.Wires) (*Node, error) {
	pool, err := vf.Open(context.Background(), cfg)
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.DiscardHandler)
	if cfg.Log != nil {
		log = cfg.Log
	}
	a := agent.New(agent.Config{
		VFs: pool, Metrics: agent.NewMetrics(prometheus.NewRegistry()), Log: log,
		Starter: &startup.Starter{RunDir: cfg.Run, Log: log,
			Admission: startup.NewAdmission(1, netvf.Path{Pool: pool})},
	})
	socket := filepath.Join(cfg.Run, cni.Socket)
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		pool.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	server := &attach.Server{Pool: pool, Wires: wires, Ready: a.Ready, RunDir: cfg.Run, Log: log}
	running.Go(func() { a.Follow(ctx) })
	running.Go(func() { _ = server.Serve(listener) })
	return &Node{tree, pool, a, func() {
		listener.Close()
		cancel()
		running.Wait()
		pool.Close()
	}}, nil
}

// Stop ends the agent; what containers have stays theirs.
func (n *Node) Stop() { n.stop() }

// Idle waits until so many VFs are idle, or ctx ends.
func (n *Node) Idle(ctx context.Context, want int) error {
	for range n.Pool.Watch(ctx) {
		idle := 0
		for _, s := range n.Pool.Snapshot() {
			if s.State == vf.Idle {
				idle++
			}
		}
		if idle == want {
			return nil
		}
	}
	var others []string
	for _, s := range n.Pool.Snapshot() {
		if s.State != vf.Idle {
			others = append(others,
				fmt.Sprintf("%s is %s of %s: %s", s.BDF, s.State, s.Owner, s.Reason))
		}
	}
	return fmt.Errorf("not %d VFs are idle: %s", want, strings.Join(others, "; "))
}

// Wires moves the veth ends of a host. Where the kernel of a node has a dummy, a bridge without
// ports stands for it: every kernel that tests run on has that.
func Wires(tree *vftest.Tree) attach.Netlink {
	return attach.Netlink{
		Sysfs: tree.Config().Sysfs,
		PCI:   func(link netlink.Link) string { return deviceOf(link) },
		Dummy: func(a netlink.LinkAttrs) netlink.Link { return &netlink.Bridge{LinkAttrs: a} },
	}
}

// The alias of a veth end says which device it stands for.
const alias = "pci "

func deviceOf(link netlink.Link) string {
	device, _ := strings.CutPrefix(link.Attrs().Alias, alias)
	return device
}

// FollowBinding makes and removes veth pairs as VFs are bound to their own driver and unbound.
func FollowBinding(tree *vftest.Tree) {
	tree.Refuse(func(op, bdf string) error {
		switch {
		case bdf == PF.BDF:
		case op == "probe" && tree.Get(bdf, "driver_override") == "(null)" &&
			tree.Get(PF.BDF, "sriov_drivers_autoprobe") == "1":
			return appear(bdf)
		case op == "unbind" && tree.Driver(bdf) == PF.VFDriver:
			return vanish(bdf)
		}
		return nil
	})
}

func appear(bdf string) error {
	if err := vanish(bdf); err != nil { // that of a former host
		return err
	}
	name := vftest.NetdevOf(PF, bdf)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: Peer(bdf)})
	if err != nil {
		return fmt.Errorf("the interface of %s: %w", bdf, err)
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetAlias(link, alias+bdf)
}

// Peer returns the name of the other end: what is on the wire of a VF.
func Peer(bdf string) string { return "w" + vftest.NetdevOf(PF, bdf) }

func vanish(bdf string) error {
	link, err := netlink.LinkByName(Peer(bdf))
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}

// Unplugged takes a VF's interface out of its container behind the agent's back.
func (n *Node) Unplugged(lease vf.Lease, name string) error {
	return Wires(n.Tree).Unplug(attach.Port{
		Device: lease.BDF, Netns: lease.Owner.Netns, Name: name, MAC: lease.MAC,
	})
}
