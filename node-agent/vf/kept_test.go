package vf_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/node-agent/vf/vftest"
)

// The last VFs of a card may be kept bound to their own driver. A lease of one writes nothing to
// sysfs; it comes back reset through vfio, and is an interface again. Sandboxes do not get it.
func TestKeptNetdevs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		cfg := tree.Config()
		cfg.NetdevVFs = 2
		p := open(t, cfg)
		kept := []string{"0000:01:10.5", "0000:01:10.6"}
		for _, s := range p.Snapshot() {
			home, driver := vf.VFIO, "vfio-pci"
			if slices.Contains(kept, s.BDF) {
				home, driver = vf.Netdev, "igbvf"
			}
			if s.State != vf.Idle || s.Home != home || tree.Driver(s.BDF) != driver {
				t.Errorf("%+v, bound to %s", s, tree.Driver(s.BDF))
			}
		}
		writes := tree.Writes()
		l := leaseFor(t, p, pod, vf.Want{Driver: vf.Netdev, Kept: true})
		named := leaseFor(t, p, pod, vf.Want{BDF: kept[1], Kept: true})
		if l.BDF != kept[0] || l.Interface != "eth1v105" || named.Interface != "eth1v106" {
			t.Errorf("leased %+v and %+v", l, named)
		}
		vfio := leaseFor(t, p, pod, vf.Want{BDF: "0000:01:10.1", Kept: true})
		if vfio.Driver != vf.VFIO || vfio.Interface != "" || tree.Writes() != writes {
			t.Errorf("leased %+v; %d writes", vfio, tree.Writes()-writes)
		}
		_, err := p.Lease(pod, vf.Want{Driver: vf.Netdev, Kept: true})
		if !errors.Is(err, vf.ErrEmpty) || !strings.Contains(err.Error(), "2 leased") {
			t.Errorf("a third: %v", err)
		}
		for range 4 {
			lease(t, p, "x")
		}
		if _, err := p.Lease(sandbox("y"), vf.Want{}); !errors.Is(err, vf.ErrEmpty) {
			t.Errorf("a sandbox got a VF that is kept: %v", err)
		}
		resets := 0
		tree.Refuse(func(op, bdf string) error {
			if op == "reset" && bdf == l.BDF {
				resets++
			}
			return nil
		})
		if err := tree.SetUp(l.Interface, true); err != nil { // as a pod's that has ended
			t.Fatal(err)
		}
		p.Return(l)
		synctest.Wait()
		s := status(t, p, l.BDF)
		if s.State != vf.Idle || tree.Driver(l.BDF) != "igbvf" || resets != 1 {
			t.Errorf("it came back as %+v, bound to %s, after %d resets",
				s, tree.Driver(l.BDF), resets)
		}
		p.Close()
		p = open(t, cfg)
		if found := p.Leases(); len(found) != 6 || found[5].Driver != vf.Netdev {
			t.Errorf("found %+v", found)
		}
		p.Close()
		cfg.NetdevVFs = 0
		p = open(t, cfg)
		if d := tree.Driver(l.BDF); d != "vfio-pci" || status(t, p, l.BDF).State != vf.Idle {
			t.Errorf("with none kept it is bound to %s", d)
		}
	})
}

// An agent that starts leaves a kept VF alone that is as the former one left it, and no other.
func TestKeptNetdevsRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		cfg := tree.Config()
		cfg.NetdevVFs = 3
		open(t, cfg).Close()
		if err := tree.SetUp("eth1v105", true); err != nil {
			t.Fatal(err)
		}
		usual, err := tree.VF("eth1", 6)
		if err != nil {
			t.Fatal(err)
		}
		other := usual
		other.Trust = true
		if err := tree.SetVF("eth1", 6, other); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var reset []string
		tree.Refuse(func(op, bdf string) error {
			mu.Lock()
			defer mu.Unlock()
			if op == "reset" {
				reset = append(reset, bdf)
			}
			return nil
		})
		p := open(t, cfg)
		kept := slices.DeleteFunc(reset, func(bdf string) bool { return bdf < "0000:01:10.4" })
		slices.Sort(kept)
		if !slices.Equal(kept, []string{"0000:01:10.5", "0000:01:10.6"}) {
			t.Errorf("of the kept, %q were reset: want the one that was up and the one with"+
				" other settings", kept)
		}
		if got, _ := tree.VF("eth1", 6); got != usual {
			t.Errorf("the last has %+v", got)
		}
		for _, s := range p.Snapshot() {
			if s.State != vf.Idle {
				t.Errorf("%+v", s)
			}
		}
	})
}

// late makes interfaces some time after their driver has taken the device, as iavf does.
type late struct{ *vftest.Tree }

func (l late) Write(path, value string) error {
	err := l.Tree.Write(path, value)
	made := filepath.Join(l.Dir, "sys/bus/pci/devices", value, "net")
	if filepath.Base(path) == "drivers_probe" && os.Rename(made, made+".late") == nil {
		time.AfterFunc(time.Second, func() { _ = os.Rename(made+".late", made) })
	}
	return err
}

// An interface that comes late is waited for.
func TestALateNetdevIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		cfg := tree.Config()
		cfg.Kernel, cfg.NetdevVFs = late{tree}, 1
		p := open(t, cfg)
		if l := leaseFor(t, p, pod, vf.Want{Driver: vf.Netdev, Kept: true}); l.Interface == "" {
			t.Errorf("leased %+v", l)
		}
	})
}

// A pool that keeps no netdevs says what to do.
func TestNoneIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, makeTree(t, vftest.IGB).Config())
		_, err := p.Lease(pod, vf.Want{Driver: vf.Netdev, Kept: true})
		if !errors.Is(err, vf.ErrEmpty) || !strings.Contains(err.Error(), "--netdev-vfs") {
			t.Errorf("the lease: %v", err)
		}
	})
}

// No lease has the MAC of another VF, leased or not, of a card, or that which another lease was
// given, until that is taken back; a pod's own on another card it may have. A lease that asks for
// an idle VF's MAC is of that VF.
func TestAMACIsOneVFs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		second := vftest.IGB
		second.BDF, second.Netdev = "0000:03:00.0", "eth3"
		tree := makeTree(t, vftest.IGB, second)
		cfg := tree.Config()
		cfg.PFs = []string{vftest.IGB.BDF, second.BDF}
		p := open(t, cfg)
		as := func(bdf, mac string) vf.Want {
			return vf.Want{BDF: bdf, Set: func(s *vf.Settings) { s.MAC = mac }}
		}
		refused := func(owner vf.Owner, want vf.Want, why string) {
			t.Helper()
			if l, err := p.Lease(owner, want); err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%+v, %v: want %q", l, err, why)
			}
		}
		const own = "ca:fe:c0:ff:ee:00"
		idle := status(t, p, "0000:01:10.3").MAC
		one, other := pod, pod
		one.NetnsCookie, other.NetnsCookie = 1, 2
		l := leaseFor(t, p, one, as("0000:01:10.0", own))
		refused(one, as("0000:01:10.1", idle), "is that of VF 0000:01:10.3; ask for another")
		refused(one, as("0000:01:10.1", strings.ToUpper(own)), "is that of VF 0000:01:10.0, which")
		refused(one, as("0000:01:10.1", vftest.AddressOf("eth3")), "is that of PF eth3")
		refused(other, as("0000:03:10.0", own), "is that of VF 0000:01:10.0, which")
		leaseFor(t, p, one, as("0000:03:10.0", own))
		if l := leaseFor(t, p, one, as("", idle)); l.BDF != "0000:01:10.3" {
			t.Errorf("its MAC is that of 0000:01:10.3, and it is %s", l.BDF)
		}
		tree.Refuse(func(op, bdf string) error {
			if op == "setvf" {
				return unix.EIO
			}
			return nil
		})
		p.Return(l)
		synctest.Wait()
		_, err := p.Lease(other, as("0000:01:10.1", own))
		if !errors.Is(err, vf.ErrEmpty) {
			t.Errorf("its card still has it: %v", err)
		}
		tree.Refuse(func(op, bdf string) error {
			if op == "reset" {
				return unix.EIO
			}
			return nil
		})
		for _, l := range p.Leases() {
			p.Return(l)
		}
		time.Sleep(time.Hour)
		tree.Refuse(nil)
		leaseFor(t, p, other, as("0000:01:10.1", own))
	})
}

// A VF that is taken back while its lease is furnished has the pool's settings in the end, and
// nobody has a lease of it.
func TestALeaseIsReturnedWhileItIsFurnished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		cfg := tree.Config()
		network := &slowNetwork{Tree: tree}
		cfg.Network = network
		p := open(t, cfg)
		usual, err := tree.VF("eth1", 0)
		if err != nil {
			t.Fatal(err)
		}
		network.slow.Store(true)
		leased := make(chan error)
		go func() {
			_, err := p.Lease(pod, vf.Want{BDF: "0000:01:10.0",
				Set: func(s *vf.Settings) { s.Trust = true }})
			leased <- err
		}()
		time.Sleep(time.Second)
		network.slow.Store(false)
		p.Return(p.Leases()[0])
		if err := <-leased; err == nil {
			t.Error("the lease was given, and had been returned")
		}
		time.Sleep(time.Minute)
		if got, err := tree.VF("eth1", 0); err != nil || got != usual {
			t.Errorf("an idle VF has %+v, %v; want %+v", got, err, usual)
		}
	})
}

// A slowNetwork takes ten seconds to set a VF.
type slowNetwork struct {
	*vftest.Tree
	slow atomic.Bool
}

func (n *slowNetwork) SetVF(netdev string, index int, to vf.Settings) error {
	if n.slow.Load() {
		time.Sleep(10 * time.Second)
	}
	return n.Tree.SetVF(netdev, index, to)
}

// A lease may have settings of its own. The next tenant gets the pool's settings, also where the
// agent was killed in between. Where the card refuses a setting, Lease fails.
func TestSettingsOfALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		cfg := tree.Config()
		p := open(t, cfg)
		usual, err := tree.VF("eth1", 0)
		if err != nil {
			t.Fatal(err)
		}
		own := vf.Settings{MAC: "ca:fe:c0:ff:ee:00", VLAN: 1000, QoS: 4, Proto: vf.Proto8021AD,
			MinRate: 100, MaxRate: 200, Trust: true, Link: vf.LinkOn}
		want := vf.Want{BDF: "0000:01:10.0", Set: func(s *vf.Settings) { *s = own }}
		l := leaseFor(t, p, pod, want)
		if got, err := tree.VF("eth1", 0); err != nil || got != own || l.MAC != own.MAC {
			t.Errorf("%+v has %+v, %v", l, got, err)
		}
		p.Close()
		p = open(t, cfg)
		if got, _ := tree.VF("eth1", 0); got != own {
			t.Errorf("another agent set it to %+v", got)
		}
		p.Return(p.Leases()[0])
		synctest.Wait()
		usual.Link = vf.LinkAuto
		if got, _ := tree.VF("eth1", 0); got != usual {
			t.Errorf("the next tenant gets %+v, want %+v", got, usual)
		}
		tree.Refuse(func(op, _ string) error {
			if op == "setvf" {
				return unix.EOPNOTSUPP
			}
			return nil
		})
		if _, err := p.Lease(pod, want); !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("the card refused, and the lease is %v", err)
		}
		tree.Refuse(nil)
		synctest.Wait()
		if len(p.Leases()) != 0 {
			t.Errorf("there is a lease: %+v", p.Leases())
		}
	})
}
