package vf_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/testbed"
	"github.com/vishvananda/netlink"
)

// The suite again, on the VFs of a network card and of an NVMe controller that a kernel drives.
func TestReal(t *testing.T) {
	// One CPU: a host with several emulated ones is not safe.
	testbed.Inside(t, testbed.Needs{NICs: 1, NVMeVFs: 16, CPUs: 1}, func(t *testing.T) {
		for driver, vfs := range map[string]int{"igb": 7, "nvme": 16} {
			t.Run(driver, func(t *testing.T) { suite(t, realBench(driver, vfs)) })
		}
		t.Run("settings", realSettings)
		t.Run("link", realLink)
		t.Run("gone", realGone)
		t.Run("times", realTimes)
	})
}

func realBench(driver string, vfs int) bench {
	runs := map[*testing.T]string{}
	return bench{
		config: func(t *testing.T) vf.Config {
			if runs[t] == "" {
				runs[t] = realRun(t)
			}
			return vf.Config{PFs: []string{driver}, Run: runs[t]}
		},
		hold: func(group string) (interface{ Close() error }, error) {
			return os.OpenFile(group, os.O_RDWR, 0)
		},
		driver: func(bdf string) string {
			target, err := os.Readlink(filepath.Join("/sys/bus/pci/devices", bdf, "driver"))
			if err != nil {
				return ""
			}
			return filepath.Base(target)
		},
		vfs: vfs,
	}
}

// realRun returns a run directory. When the test ends, after the pool was closed, the pool in it,
// if any, is undone.
func realRun(t *testing.T) string {
	run := filepath.Join(t.TempDir(), "fastiov")
	t.Cleanup(func() {
		if err := vf.Undo(vf.Config{Run: run}); err != nil {
			t.Errorf("undo: %v", err)
		}
	})
	return run
}

// The PF enforces the settings that the pool was given, and they survive the VF's reset.
func realSettings(t *testing.T) {
	p := open(t, vf.Config{PFs: []string{"igb"}, Run: realRun(t),
		VF: vf.Template{VLAN: 42, MaxRate: 100}})
	l := lease(t, p, "a")
	check := func() {
		t.Helper()
		pf, err := netlink.LinkByName(l.Netdev)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range pf.Attrs().Vfs {
			if v.ID == l.Index &&
				(v.Mac.String() != l.MAC || v.Vlan != 42 || v.MaxTxRate != 100 || !v.Spoofchk ||
					v.Trust == 1) {
				t.Errorf("the PF keeps %+v for %+v", v, l)
			}
		}
	}
	check()
	p.Return(l)
	for range 7 {
		lease(t, p, "b")
	}
	check()
}

// The kernel tells of a link that goes and comes.
func realLink(t *testing.T) {
	changed := make(chan struct{}, 1)
	p := open(t, vf.Config{PFs: []string{"igb"}, Run: realRun(t),
		Log: slog.New(notify{"PF link", changed})})
	l := lease(t, p, "a") // waits for the link
	pf, err := netlink.LinkByName(l.Netdev)
	if err != nil {
		t.Fatal(err)
	}
	drain(changed)
	if err := netlink.LinkSetDown(pf); err != nil {
		t.Fatal(err)
	}
	<-changed
	if _, err := p.Lease(sandbox("b"), vf.Want{}); !errors.Is(err, vf.ErrLinkDown) {
		t.Errorf("without a link the pool says: %v", err)
	}
	if err := netlink.LinkSetUp(pf); err != nil {
		t.Fatal(err)
	}
	lease(t, p, "b")
}

func drain(c chan struct{}) {
	select {
	case <-c:
	default:
	}
}

// A PF whose driver is taken away takes its VFs with it; with the driver they come back.
func realGone(t *testing.T) {
	p := open(t, vf.Config{PFs: []string{"igb"}, Run: realRun(t)})
	l := lease(t, p, "a")
	driver := "/sys/bus/pci/drivers/igb/"
	if err := os.WriteFile(driver+"unbind", []byte(l.PF), 0o200); err != nil {
		t.Fatal(err)
	}
	for range p.Watch(t.Context()) {
		if status(t, p, l.BDF).Lost != "" {
			break
		}
	}
	if n := count(p, vf.Gone); n != 7 {
		t.Errorf("%d VFs are gone: %+v", n, p.Snapshot())
	}
	if err := os.WriteFile(driver+"bind", []byte(l.PF), 0o200); err != nil {
		t.Fatal(err)
	}
	p.Return(l)
	for range 7 {
		lease(t, p, "b")
	}
}

// realTimes logs times of the emulated cards, for the record. A lease does not wait for hardware:
// it takes less than a reset.
func realTimes(t *testing.T) {
	for _, driver := range []string{"igb", "nvme"} {
		begin := time.Now()
		p := open(t, vf.Config{PFs: []string{driver}, Run: realRun(t)})
		opened := time.Since(begin)
		first := lease(t, p, "first") // waits for the link
		begin = time.Now()
		p.Return(first)
		for range p.Watch(t.Context()) {
			if count(p, vf.Idle) == len(p.Snapshot()) {
				break
			}
		}
		oneReset := time.Since(begin)
		var took []time.Duration
		var leases []vf.Lease
		for range p.Snapshot() {
			begin := time.Now()
			leases = append(leases, lease(t, p, "timed"))
			took = append(took, time.Since(begin))
		}
		begin = time.Now()
		for _, l := range leases {
			p.Return(l)
		}
		returned := time.Since(begin)
		for range leases {
			lease(t, p, "again")
		}
		reset := time.Since(begin)
		slices.Sort(took)
		t.Logf(
			"%s: opened in %s; leases took %s, median %s; %d returns took %s, all were reset and leased again after %s",
			driver, opened, took, took[len(took)/2], len(leases), returned, reset)
		if took[len(took)/2] > oneReset {
			t.Errorf("%s: a lease takes as long as a reset, which took %s", driver, oneReset)
		}
		p.Close()
	}
}
