package vf

import (
	"errors"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/node-agent/netpath/netpathtest"
	"github.com/fastiov/fastiov/node-agent/startup"
	pool "github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/node-agent/vf/vftest"
)

// poolOf returns a function that opens a pool of two VFs of an emulated PF.
func poolOf(t *testing.T) (tree *vftest.Tree, pf vftest.PF, open func() Path) {
	tree, pf = vftest.Make(t), vftest.IGB
	pf.VFs = 2
	if err := tree.AddPF(pf); err != nil {
		t.Fatal(err)
	}
	return tree, pf, func() Path {
		vfs, err := pool.Open(t.Context(), tree.Config())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(vfs.Close)
		return Path{Pool: vfs}
	}
}

func TestConformance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, open := poolOf(t)
		netpathtest.Subject{
			Open: func() (startup.NetPath, func(), error) {
				p := open()
				return p, p.Pool.(*pool.Pool).Close, nil
			},
			Kind: Kind, NICs: 2, Settle: func() { time.Sleep(time.Minute) },
		}.Run(t)
	})
}

// A sandbox has one VF of the pool as its NIC, with the VF's MAC and device. Another agent finds
// what it left, and nothing that other holders have. A card without a link is a lack of its own.
func TestPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree, pf, open := poolOf(t)
		p := open()
		bench, err := pool.Process(pool.Bench, "bench", os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Pool.Lease(bench, pool.Want{BDF: "0000:01:10.0"}); err != nil {
			t.Fatal(err)
		}
		lease, err := p.Lease("a")
		if err != nil || lease.NIC.Kind != "vf" || lease.NIC.Device() != "0000:01:10.1" ||
			lease.NIC.PCI.Group == "" || lease.NIC.MAC == "" || lease.Number != 1 ||
			lease.ID != "a" {
			t.Fatalf("leased %+v, %v", lease, err)
		}
		_, err = p.Lease("b")
		lacks(t, err, startup.LackNIC, pool.ErrEmpty)
		p.Pool.(*pool.Pool).Close()

		p = open()
		left := p.Left()
		if len(left) != 1 || left[0].ID != "a" || left[0].NIC.Device() != lease.NIC.Device() {
			t.Fatalf("left is %+v, want %+v", left, lease)
		}
		p.Fault(left[0], "an error")
		vfs := p.Pool.(*pool.Pool)
		lost := func(s pool.Status) bool { return s.Lost != "" }
		if i := slices.IndexFunc(vfs.Snapshot(), lost); i != 1 {
			t.Errorf("after a fault of the second VF: %+v", vfs.Snapshot())
		}
		if err := tree.SetCarrier(pf.Netdev, false); err != nil {
			t.Fatal(err)
		}
		p.Return(left[0])
		synctest.Wait()
		_, err = p.Lease("c")
		lacks(t, err, startup.LackLink, pool.ErrLinkDown)
	})
}

// lacks checks that a start waits for lack, with the pool's own reason.
func lacks(t *testing.T, err error, lack startup.Lack, why error) {
	t.Helper()
	var lacking *startup.Lacking
	if !errors.As(err, &lacking) || lacking.Lack != lack || !errors.Is(err, why) {
		t.Errorf("the error is %v, want a lack of %s", err, lack)
	}
}
