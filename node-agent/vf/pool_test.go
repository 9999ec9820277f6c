package vf_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/node-agent/vf/vftest"
	"golang.org/x/sys/unix"
)

// A VF that fails its reset is shown, counted and tried again after 1 s, 2 s, 4 s. The others are
// not held up.
func TestQuarantineTimeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		tree.ResetTime = 100 * time.Millisecond
		p := open(t, tree.Config())
		l := lease(t, p, "a")
		tree.Refuse(func(op, bdf string) error {
			if op == "reset" && bdf == l.BDF {
				return unix.EIO
			}
			return nil
		})
		p.Return(l)
		synctest.Wait()
		if s := status(t, p, l.BDF); s.State != vf.Resetting {
			t.Fatalf("right after its return it is %s", s.State)
		}
		failed := time.Now()
		for failures, wait := range []time.Duration{1, 2, 4, 8} {
			time.Sleep(tree.ResetTime)
			synctest.Wait()
			s := status(t, p, l.BDF)
			if s.State != vf.Quarantined || s.ResetFailures != failures+1 ||
				time.Until(s.RetryAt) != wait*time.Second {
				t.Fatalf("after %s: %s, %d failures, next try in %s", time.Since(failed), s.State,
					s.ResetFailures, time.Until(s.RetryAt))
			}
			time.Sleep(wait * time.Second)
			synctest.Wait()
			if s := status(t, p, l.BDF); s.State != vf.Preparing {
				t.Fatalf("%s after its failure it is %s", wait*time.Second, s.State)
			}
		}
		tree.Refuse(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := status(t, p, l.BDF); s.State != vf.Idle || s.ResetFailures != 4 {
			t.Errorf("mended it is %+v", s)
		}
	})
}

// Returned VFs are reset side by side, and no call of the pool waits for them.
func TestResetsAreParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.NVMe)
		tree.ResetTime = 100 * time.Millisecond
		begin := time.Now()
		p := open(t, tree.Config())
		var leases []vf.Lease
		for range vftest.NVMe.VFs {
			leases = append(leases, lease(t, p, "a"))
		}
		for _, l := range leases {
			p.Return(l)
		}
		if took := time.Since(begin); took != tree.ResetTime {
			t.Errorf("opening, leasing and returning took %s, want the one reset of the opening",
				took)
		}
		for range vftest.NVMe.VFs {
			lease(t, p, "b")
		}
		if took := time.Since(begin); took != 2*tree.ResetTime {
			t.Errorf("the second round was complete after %s, want two resets", took)
		}
	})
}

func TestLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		p := open(t, tree.Config())
		kept := lease(t, p, "kept")
		if err := tree.SetCarrier("eth1", false); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := p.Lease(sandbox("b"), vf.Want{}); !errors.Is(err, vf.ErrLinkDown) {
			t.Errorf("with its cable cut the pool says: %v", err)
		}
		if s := status(t, p, kept.BDF); s.State != vf.Leased || s.LinkUp {
			t.Errorf("a lease on a dead link became %+v", s)
		}
		if err := tree.SetCarrier("eth1", true); err != nil {
			t.Fatal(err)
		}
		lease(t, p, "b") // waits for the signal
	})
}

// A card may refuse a rate as long as it has no link. Then its VFs wait for it, and are not leased
// without their limit.
func TestRateNeedsLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		if err := tree.SetCarrier("eth1", false); err != nil {
			t.Fatal(err)
		}
		cfg := tree.Config()
		cfg.VF.MaxRate = 100
		p := open(t, cfg)
		if n := count(p, vf.Quarantined); n != 7 {
			t.Errorf("without a link: %+v", p.Snapshot())
		}
		begin := time.Now()
		if err := tree.SetCarrier("eth1", true); err != nil {
			t.Fatal(err)
		}
		l := lease(t, p, "a")
		if s, err := tree.VF("eth1", l.Index); err != nil || s.MaxRate != 100 ||
			time.Since(begin) != 0 {
			t.Errorf("after %s: %+v, %v", time.Since(begin), s, err)
		}
	})
}

// A PF that loses its VFs takes them out of use. Leases stay until they are returned. When the PF
// is back, so are its VFs.
func TestGoneAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		p := open(t, tree.Config())
		l := lease(t, p, "a")
		if err := tree.Unload(vftest.IGB.BDF); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := status(t, p, l.BDF); s.Lost == "" || s.Generation != l.Generation {
			t.Errorf("lost %+v, leased %+v", s, l)
		}
		if n := count(p, vf.Gone); n != 7 {
			t.Errorf("%d VFs are gone, want 7", n)
		}
		if err := tree.Load(vftest.IGB.BDF); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		s := status(t, p, l.BDF)
		if s.State != vf.Gone || s.Owner.Name != "a" || count(p, vf.Idle) != 6 {
			t.Errorf("a lost lease became %+v, %d others are idle", s, count(p, vf.Idle))
		}
		p.Return(l)
		synctest.Wait()
		if n := count(p, vf.Idle); n != 7 {
			t.Errorf("%d VFs are idle again, want 7: %+v", n, p.Snapshot())
		}
	})
}

// A VF that answers its reset but has changed since is not leased.
func TestCheckAfterReset(t *testing.T) {
	for name, c := range map[string]struct {
		command, status uint16
		says            string
	}{
		"dead":    {0xffff, 0xffff, "does not answer"},
		"masters": {0x0006, 0x0010, "can still master the bus"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tree := makeTree(t, vftest.IGB)
				p := open(t, tree.Config())
				l := lease(t, p, "a")
				if err := tree.SetConfig(l.BDF, c.command, c.status); err != nil {
					t.Fatal(err)
				}
				p.Return(l)
				synctest.Wait()
				if s := status(t, p, l.BDF); s.State != vf.Quarantined ||
					!strings.Contains(s.Reason, c.says) {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// An entry that cannot be read keeps its VF out of use until the lease by its unknown owner is
// returned.
func TestUnreadableEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		cfg := tree.Config()
		p := open(t, cfg)
		l := lease(t, p, "a")
		p.Close()
		path := filepath.Join(cfg.Run, "vf", l.BDF+".json")
		if err := os.WriteFile(path, []byte(`{"version":9}`), 0o600); err != nil {
			t.Fatal(err)
		}
		resets := watchResets(tree)
		p = open(t, cfg)
		found := p.Leases()
		if len(found) != 1 || found[0].BDF != l.BDF || found[0].Owner != (vf.Owner{}) ||
			found[0].Generation <= l.Generation {
			t.Fatalf("found %+v", found)
		}
		if resets()[l.BDF] != 0 || count(p, vf.Idle) != 6 {
			t.Error("the VF was touched")
		}
		p.Return(found[0])
		synctest.Wait()
		if count(p, vf.Idle) != 7 || resets()[l.BDF] != 1 {
			t.Errorf("after its return: %+v", status(t, p, l.BDF))
		}
	})
}

func watchResets(tree *vftest.Tree) func() map[string]int {
	var mu sync.Mutex
	resets := map[string]int{}
	tree.Refuse(func(op, bdf string) error {
		mu.Lock()
		defer mu.Unlock()
		if op == "reset" {
			resets[bdf]++
		}
		return nil
	})
	return func() map[string]int {
		mu.Lock()
		defer mu.Unlock()
		return maps.Clone(resets)
	}
}

// A lease in the journal of a VF that is not there any more is found, so that its sandbox is ended.
func TestStray(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB, vftest.NVMe)
		cfg := tree.Config()
		cfg.PFs = []string{"igb", "nvme"}
		p := open(t, cfg)
		var stray vf.Lease
		for stray.PF != vftest.NVMe.BDF {
			stray = lease(t, p, "stray")
		}
		for _, l := range p.Leases() {
			if l.BDF != stray.BDF {
				p.Return(l)
			}
		}
		p.Close()
		cfg.PFs = []string{"igb"}
		p = open(t, cfg)
		found := p.Leases()
		if len(found) != 1 || found[0].BDF != stray.BDF || !found[0].Gone {
			t.Fatalf("found %+v, want %+v", found, stray)
		}
		lost := func(s vf.Status) bool { return s.BDF == stray.BDF && s.Lost != "" }
		if all := p.Snapshot(); !slices.ContainsFunc(all, lost) {
			t.Errorf("its holder is not told: %+v", all)
		}
		p.Return(found[0])
		if n := len(p.Snapshot()); n != 7 {
			t.Errorf("%d VFs, want 7", n)
		}
	})
}

// VFs that an operator had made before are taken into use if they are idle, and put back by the
// undo.
func TestTakesWhatIsThere(t *testing.T) {
	tree := makeTree(t, vftest.IGB)
	if err := errors.Join(tree.CreateVFs(vftest.IGB.BDF, 4),
		tree.SetVF("eth1", 2, vf.Settings{MAC: "02:00:00:00:00:02", VLAN: 7})); err != nil {
		t.Fatal(err)
	}
	before := picture(t, tree)
	cfg := tree.Config()
	cfg.VF = vf.Template{VLAN: 100, MaxRate: 1000}
	p := open(t, cfg)
	if n := count(p, vf.Idle); n != 4 {
		t.Fatalf("%d idle, want the 4 that were there: %+v", n, p.Snapshot())
	}
	s, err := tree.VF("eth1", 2)
	if want := p.Snapshot()[2].MAC; err != nil ||
		s != (vf.Settings{MAC: want, VLAN: 100, MaxRate: 1000, SpoofCheck: true}) {
		t.Errorf("set: %+v, %v", s, err)
	}
	p.Close()
	if err := vf.Undo(cfg); err != nil {
		t.Fatal(err)
	}
	if after := picture(t, tree); after != before {
		t.Errorf("found:\n%s\nafter the undo:\n%s", before, after)
	}
}

// picture is all that an undo has to put back.
func picture(t *testing.T, tree *vftest.Tree) string {
	t.Helper()
	var lines []string
	devices, err := os.ReadDir(filepath.Join(tree.Dir, "sys/bus/pci/devices"))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		line := d.Name() + " driver=" + tree.Driver(d.Name())
		for _, file := range []string{"sriov_numvfs", "sriov_drivers_autoprobe", "driver_override",
			"net/eth1/flags"} {
			line += " " + file + "=" + tree.Get(d.Name(), file)
		}
		lines = append(lines, line)
	}
	for i := range 7 {
		s, err := tree.VF("eth1", i)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("VF %d %+v", i, s))
	}
	return strings.Join(lines, "\n")
}

// A host that cannot be used gets one line that says what is wrong and what to do. It is left as it
// was found.
func TestBadHosts(t *testing.T) {
	for name, c := range map[string]struct {
		pfs  []vftest.PF
		host func(*vftest.Tree) error
		cfg  func(*vf.Config)
		says string
	}{
		"no SR-IOV":      {says: "no SR-IOV device"},
		"which":          {pfs: []vftest.PF{vftest.IGB, vftest.NVMe}, says: "say which to use: 0000:01:00.0 igb eth1, 0000:02:00.0 nvme"},
		"unknown PF":     {pfs: []vftest.PF{vftest.IGB}, cfg: func(c *vf.Config) { c.PFs = []string{"eth7"} }, says: `no SR-IOV device is "eth7"`},
		"too many":       {pfs: []vftest.PF{vftest.IGB}, cfg: func(c *vf.Config) { c.NumVFs = 8 }, says: "can have 7 VFs, 8 are wanted"},
		"other number":   {pfs: []vftest.PF{vftest.IGB}, host: func(h *vftest.Tree) error { return h.CreateVFs(vftest.IGB.BDF, 3) }, cfg: func(c *vf.Config) { c.NumVFs = 5 }, says: "has 3 VFs already, 5 are wanted"},
		"no PF driver":   {pfs: []vftest.PF{vftest.IGB}, host: func(h *vftest.Tree) error { return h.Unload(vftest.IGB.BDF) }, says: "has no driver"},
		"no vfio-pci":    {pfs: []vftest.PF{vftest.IGB}, host: func(h *vftest.Tree) error { return os.RemoveAll(h.Dir + "/sys/bus/pci/drivers/vfio-pci") }, says: "modprobe vfio-pci"},
		"VFs in use":     {pfs: []vftest.PF{vftest.IGB}, host: upVFs, says: "ip link set"},
		"bad VLAN":       {pfs: []vftest.PF{vftest.IGB}, cfg: func(c *vf.Config) { c.VF.VLAN = 5000 }, says: "VLAN 5000"},
		"bad rate":       {pfs: []vftest.PF{vftest.IGB}, cfg: func(c *vf.Config) { c.VF = vf.Template{MinRate: 9, MaxRate: 5} }, says: "make no sense"},
		"bad MAC prefix": {pfs: []vftest.PF{vftest.IGB}, cfg: func(c *vf.Config) { c.VF.MACPrefix = "ff" }, says: "MAC prefix"},
		"creation fails": {pfs: []vftest.PF{vftest.IGB}, host: refuse("numvfs", unix.ENOMEM), says: "create 7 VFs on PF 0000:01:00.0: cannot allocate memory"},
		"probe fails":    {pfs: []vftest.PF{vftest.IGB}, host: refuse("probe", unix.EINVAL), says: "invalid argument"},
		"reset fails":    {pfs: []vftest.PF{vftest.IGB}, host: refuse("reset", unix.ENOTTY), says: "none of 7 VFs can be used; 0000:01:10.0: reset: inappropriate ioctl"},
		"not root":       {pfs: []vftest.PF{vftest.IGB}, host: refuse("reset", unix.EACCES), says: "run as root"},
	} {
		t.Run(name, func(t *testing.T) {
			tree := makeTree(t, c.pfs...)
			if c.host != nil {
				if err := c.host(tree); err != nil {
					t.Fatal(err)
				}
			}
			cfg := tree.Config()
			if c.cfg != nil {
				c.cfg(&cfg)
			}
			before := picture(t, tree)
			p, err := vf.Open(t.Context(), cfg)
			if err == nil {
				p.Close()
				t.Fatal("it was opened")
			}
			if !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("it said %q, want one line with %q", err, c.says)
			}
			if after := picture(t, tree); after != before {
				t.Errorf("found:\n%s\nleft:\n%s", before, after)
			}
			if left, err := os.ReadDir(cfg.Run); err == nil && len(left) > 0 {
				t.Errorf("left in the run directory: %v", left)
			}
		})
	}
}

func refuse(op string, err error) func(*vftest.Tree) error {
	return func(tree *vftest.Tree) error {
		tree.Refuse(func(o, _ string) error {
			if o == op {
				return err
			}
			return nil
		})
		return nil
	}
}

// upVFs acts as an operator who uses every VF on the host.
func upVFs(tree *vftest.Tree) error {
	if err := tree.CreateVFs(vftest.IGB.BDF, 7); err != nil {
		return err
	}
	netdevs, err := filepath.Glob(filepath.Join(tree.Dir, "sys/bus/pci/devices/*:10.*/net/*"))
	for _, netdev := range netdevs {
		err = errors.Join(err, tree.SetUp(filepath.Base(netdev), true))
	}
	return err
}

// A driver that was just bound makes its netdev when it is there already: VFs are made after that.
func TestAPFWhoseNetdevComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		net := filepath.Join(tree.Dir, "sys/bus/pci/devices", vftest.IGB.BDF, "net")
		if err := os.Rename(net, net+"-later"); err != nil {
			t.Fatal(err)
		}
		tree.Refuse(func(op, _ string) error {
			if op == "numvfs" {
				return os.Rename(net+"-later", net)
			}
			return nil
		})
		p := open(t, tree.Config())
		synctest.Wait()
		if _, err := p.Lease(sandbox("a"), vf.Want{}); err != nil {
			t.Errorf("its netdev was not set up: %v", err)
		}
	})
}

// One VF that the host uses itself does not keep the others from being used, nor does one in a
// shared group.
func TestSomeVFsBusy(t *testing.T) {
	tree := makeTree(t, vftest.IGB)
	if err := tree.CreateVFs(vftest.IGB.BDF, 3); err != nil {
		t.Fatal(err)
	}
	netdevs, err := filepath.Glob(filepath.Join(tree.Dir, "sys/bus/pci/devices/0000:01:10.1/net/*"))
	if err != nil || len(netdevs) != 1 {
		t.Fatal(netdevs, err)
	}
	members := filepath.Join(tree.Dir,
		"sys/bus/pci/devices/0000:01:10.2/iommu_group/devices/0000:01:00.1")
	if err := errors.Join(tree.SetUp(filepath.Base(netdevs[0]), true),
		os.WriteFile(members, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	p := open(t, tree.Config())
	says := map[int]string{1: "its netdev", 2: "shares IOMMU group"}
	for i, s := range p.Snapshot() {
		if (s.State == vf.Quarantined) != (says[i] != "") || !strings.Contains(s.Reason, says[i]) {
			t.Errorf("VF %d is %s: %s", i, s.State, s.Reason)
		}
	}
	if tree.Driver("0000:01:10.1") != "igbvf" {
		t.Error("a VF in use was taken from its driver")
	}
}

func TestOpenIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		before := picture(t, tree)
		tree.ResetTime = time.Minute
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := vf.Open(ctx, tree.Config()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it said %v", err)
		}
		if after := picture(t, tree); after != before {
			t.Errorf("found:\n%s\nleft:\n%s", before, after)
		}
	})
}

// A journal that cannot be written gives no lease: a lease that is not written down cannot be found
// again.
func TestJournalFails(t *testing.T) {
	tree := makeTree(t, vftest.IGB)
	cfg := tree.Config()
	p := open(t, cfg)
	first := p.Snapshot()[0]
	block := filepath.Join(cfg.Run, "vf", first.BDF+".json.new")
	if err := os.Mkdir(block, 0o700); err != nil { // a file that cannot be written to, even by root
		t.Fatal(err)
	}
	oldest := slices.MinFunc(p.Snapshot(), func(a, b vf.Status) int {
		return a.Since.Compare(b.Since)
	})
	for range 7 {
		l, err := p.Lease(sandbox("a"), vf.Want{})
		if err != nil {
			if !strings.Contains(err.Error(), "is there room") {
				t.Fatal(err)
			}
			if count(p, vf.Leased)+count(p, vf.Idle) != 7 {
				t.Errorf("oldest %s: %+v", oldest.BDF, p.Snapshot())
			}
			if err := os.RemoveAll(block); err != nil {
				t.Fatal(err)
			}
			l = lease(t, p, "a")
		}
		if l.Generation == 0 {
			t.Errorf("leased %+v", l)
		}
	}
}

func BenchmarkLease(b *testing.B) {
	tree := vftest.Make(b)
	if err := tree.AddPF(vftest.NVMe); err != nil {
		b.Fatal(err)
	}
	p, err := vf.Open(b.Context(), tree.Config())
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	for b.Loop() {
		l, err := p.Lease(sandbox("a"), vf.Want{})
		for errors.Is(err, vf.ErrEmpty) {
			b.StopTimer()
			for range p.Watch(b.Context()) {
				if count(p, vf.Idle) > 0 {
					break
				}
			}
			b.StartTimer()
			l, err = p.Lease(sandbox("a"), vf.Want{})
		}
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		p.Return(l)
		b.StartTimer()
	}
}

// An address is that of an ordinal, so no two VFs may have one, on whichever PF they are.
func TestEachVFHasItsOrdinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		second := vftest.IGB
		second.BDF, second.Netdev = "0000:02:00.0", "eth9"
		tree := makeTree(t, vftest.IGB, second)
		cfg := tree.Config()
		cfg.PFs = []string{second.BDF, vftest.IGB.BDF}
		p := open(t, cfg)
		had := map[int]string{}
		for range p.Snapshot() {
			l := lease(t, p, "a")
			if other, twice := had[l.Ordinal]; twice {
				t.Errorf("%s and %s are both number %d", other, l.BDF, l.Ordinal)
			}
			had[l.Ordinal] = l.BDF
		}
	})
}
