package vf_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/node-agent/vf/vftest"
)

var pod = vf.Owner{Kind: vf.Pod, Name: "default/web", Netns: "/proc/self/ns/net"}

// A tenant may have a VF by the kernel's own driver. After its return, and after a restart, it is
// vfio-pci's again, reset, and set as before; meanwhile no undo takes it.
func TestNetdev(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		cfg := tree.Config()
		p := open(t, cfg)
		want := vf.Want{BDF: "0000:01:10.3", Driver: vf.Netdev}
		l := leaseFor(t, p, pod, want)
		if l.BDF != want.BDF || tree.Driver(l.BDF) != "igbvf" || l.Interface != "eth1v103" {
			t.Errorf("leased %+v, bound to %s", l, tree.Driver(l.BDF))
		}
		if got := tree.Get(vftest.IGB.BDF, "sriov_drivers_autoprobe"); got != "0" {
			t.Errorf("the PF lets VFs be probed: %s", got)
		}
		if err := tree.SetUp(l.Interface, true); err != nil { // as the pod does
			t.Fatal(err)
		}
		p.Close()
		err := vf.Undo(cfg)
		if err == nil || !strings.Contains(err.Error(), "in use by pod/default/web") {
			t.Errorf("an undo under a tenant said: %v", err)
		}
		p = open(t, cfg)
		found := p.Leases()
		if len(found) != 1 || found[0].Owner != pod || found[0].Driver != vf.Netdev ||
			tree.Driver(l.BDF) != "igbvf" {
			t.Fatalf("found %+v", found)
		}
		p.Return(found[0])
		synctest.Wait()
		s, driver := status(t, p, l.BDF), tree.Driver(l.BDF)
		if s.State != vf.Idle || driver != "vfio-pci" || s.Driver != vf.VFIO {
			t.Fatalf("after its return: %+v, bound to %s", s, driver)
		}
		again := leaseFor(t, p, pod, vf.Want{BDF: l.BDF})
		if again.Generation != 2 || again.Interface != "" {
			t.Errorf("leased again: %+v", again)
		}
	})
}

// A VF whose netdev is still in somebody's namespace is not taken from there.
func TestANetdevThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		cfg := tree.Config()
		p := open(t, cfg)
		l := leaseFor(t, p, pod, vf.Want{Driver: vf.Netdev})
		here := filepath.Join(tree.Dir, "sys/bus/pci/devices", l.BDF, "net", l.Interface)
		away := filepath.Join(tree.Dir, l.Interface) // sysfs shows those of one's own namespace
		if err := os.Rename(here, away); err != nil {
			t.Fatal(err)
		}
		p.Return(l)
		synctest.Wait()
		if s := status(t, p, l.BDF); s.State != vf.Quarantined || tree.Driver(l.BDF) != "igbvf" {
			t.Errorf("it became %+v", s)
		}
		p.Close()
		if err := vf.Undo(cfg); err == nil ||
			!strings.Contains(err.Error(), "container that lives") {
			t.Errorf("undone under a container: %v", err)
		}
		time.AfterFunc(time.Second, func() { _ = os.Rename(away, here) }) // the namespace has ended
		p = open(t, cfg)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := status(t, p, l.BDF); s.State != vf.Idle || tree.Driver(l.BDF) != "vfio-pci" {
			t.Errorf("it became %+v", s)
		}
	})
}

// Undo waits for the netdev of a container that has just ended: the kernel brings it back a little
// later.
func TestUndoAwaitsANetdev(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		cfg := tree.Config()
		p := open(t, cfg)
		l := leaseFor(t, p, pod, vf.Want{Driver: vf.Netdev})
		p.Close()
		here := filepath.Join(tree.Dir, "sys/bus/pci/devices", l.BDF, "net", l.Interface)
		away := filepath.Join(tree.Dir, l.Interface)
		if err := os.Rename(here, away); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, func() { _ = os.Rename(away, here) })
		if err := vf.Undo(cfg); err != nil {
			t.Error(err)
		}
	})
}

// A VF that the kernel's driver does not take goes back, and its tenant hears why.
func TestANetdevThatCannotBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB, vftest.NVMe)
		cfg := tree.Config()
		cfg.PFs = []string{"igb", "nvme"}
		p := open(t, cfg)
		tree.Refuse(func(op, bdf string) error {
			if op == "probe" && tree.Get(bdf, "driver_override") == "(null)" {
				return unix.ENODEV
			}
			return nil
		})
		if _, err := p.Lease(pod, vf.Want{Driver: vf.Netdev}); !errors.Is(err, unix.ENODEV) {
			t.Errorf("a VF that no driver takes: %v", err)
		}
		synctest.Wait()
		if n := count(p, vf.Idle); n != 23 || len(p.Leases()) != 0 {
			t.Errorf("%d VFs are idle; leases %v", n, p.Leases())
		}
		for says, want := range map[string]vf.Want{
			"the pool has no VF 0000:02:10.0 by netdev": {BDF: "0000:02:10.0", Driver: vf.Netdev},
			"the pool has no VF 0000:ff:10.0 by vfio":   {BDF: "0000:ff:10.0"},
			`by vfio or netdev, not by "dpdk"`:          {Driver: "dpdk"},
		} {
			if _, err := p.Lease(pod, want); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%+v: %v", want, err)
			}
		}
	})
}

// A holder may die while its VF is being bound. The VF comes back all the same, and the caller that
// asked for it does not get it.
func TestANetdevWhoseHolderDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		p := open(t, tree.Config())
		want := vf.Want{BDF: "0000:01:10.3", Driver: vf.Netdev}
		var order []string
		tree.Refuse(func(op, bdf string) error {
			if op == "probe" && !slices.Contains(order, "probe for (null)") {
				p.Return(p.Leases()[0])
			}
			order = append(order, op+" for "+tree.Get(bdf, "driver_override"))
			return nil
		})
		_, err := p.Lease(pod, want)
		if err == nil || !strings.Contains(err.Error(), "was returned") {
			t.Errorf("the lease of a dead holder: %v", err)
		}
		synctest.Wait()
		s, driver := status(t, p, want.BDF), tree.Driver(want.BDF)
		if s.State != vf.Idle || driver != "vfio-pci" || len(p.Leases()) != 0 {
			t.Errorf("it became %+v, bound to %q, after %q", s, driver, order)
		}
	})
}

// A driver that makes no netdev is waited for by its own lease alone.
func TestNobodyWaitsForAnothersNetdev(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		card := vftest.IGB
		card.Mute = true
		p := open(t, makeTree(t, card).Config())
		begin := time.Now()
		var leasing sync.WaitGroup
		for range 4 {
			leasing.Go(func() {
				_, err := p.Lease(pod, vf.Want{Driver: vf.Netdev})
				if err == nil || !strings.Contains(err.Error(), "no network interface") {
					t.Errorf("the lease: %v", err)
				}
			})
		}
		leasing.Wait()
		if took := time.Since(begin); took > 6*time.Second {
			t.Errorf("four leases at once took %s", took)
		}
	})
}
