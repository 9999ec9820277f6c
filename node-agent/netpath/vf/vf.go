// Package vf is the path to the network by virtual functions: each sandbox is given one of the
// pool's until it ends, a microVM by vfio, a container as a network interface.
package vf

import (
	"errors"

	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
	pool "github.com/fastiov/fastiov/node-agent/vf"
)

// Kind is the path's name in metrics, records and the node API.
const Kind = "vf"

// A Pool has the VFs.
type Pool interface {
	Lease(pool.Owner, pool.Want) (pool.Lease, error)
	SetOwner(pool.Lease, pool.Owner) error
	Fault(bdf, why string)
	Return(pool.Lease)
	Leases() []pool.Lease
}

// Path implements startup.NetPath.
type Path struct {
	Pool   Pool
	Netdev bool // sandboxes have VFs as network interfaces, of those that are kept so
}

// Lease implements startup.NetPath.
func (p Path) Lease(id string) (startup.Lease, error) {
	var want pool.Want
	if p.Netdev {
		want = pool.Want{Driver: pool.Netdev, Kept: true}
	}
	l, err := p.Pool.Lease(pool.Owner{Kind: pool.Sandbox, Name: id}, want)
	switch {
	case errors.Is(err, pool.ErrEmpty):
		err = &startup.Lacking{Lack: startup.LackNIC, Err: err}
	case errors.Is(err, pool.ErrLinkDown):
		err = &startup.Lacking{Lack: startup.LackLink, Err: err}
	}
	return leaseOf(l), err
}

// Own implements startup.NetPath.
func (p Path) Own(l startup.Lease, rec sandbox.Record) error {
	owner := pool.Owner{
		Kind: pool.Sandbox, Name: rec.Spec.ID, PID: rec.PID, StartTicks: rec.StartTicks,
	}
	return p.Pool.SetOwner(inPool(l), owner)
}

// Fault implements startup.NetPath.
func (p Path) Fault(l startup.Lease, why string) { p.Pool.Fault(l.NIC.Device(), why) }

// Return implements startup.NetPath.
func (p Path) Return(l startup.Lease) { p.Pool.Return(inPool(l)) }

// Left implements startup.NetPath. What holders of another kind have is theirs.
func (p Path) Left() (left []startup.Lease) {
	for _, l := range p.Pool.Leases() {
		if l.Owner.Kind == pool.Sandbox || l.Owner.Kind == "" {
			left = append(left, leaseOf(l))
		}
	}
	return left
}

func leaseOf(l pool.Lease) startup.Lease {
	return startup.Lease{
		NIC: sandbox.NIC{
			Kind: Kind, MAC: l.MAC, PCI: &sandbox.PCI{BDF: l.BDF, Group: l.Group},
		},
		Number: l.Ordinal, Generation: l.Generation,
		ID: l.Owner.Name, PID: l.Owner.PID, StartTicks: l.Owner.StartTicks, Gone: l.Gone,
	}
}

// inPool returns as much of a lease as names it in the pool.
func inPool(l startup.Lease) pool.Lease {
	return pool.Lease{
		BDF: l.NIC.Device(), Generation: l.Generation,
		Owner: pool.Owner{Kind: pool.Sandbox, Name: l.ID},
	}
}
