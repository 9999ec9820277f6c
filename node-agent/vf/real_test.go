package vf_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/testbed"
	"github.com/vishvananda/netlink"
)

// The suite again, on the VFs of a network card and of an NVMe controller that a kernel drives.
func TestReal(t *testing.T) {
	testbed.Inside(t, testbed.Needs{NICs: 1, NVMeVFs: 16}, func(t *testing.T) {
		for driver, vfs := range map[string]int{"igb": 7, "nvme": 16} {
			t.Run(driver, func(t *testing.T) { suite(t, realBench(driver, vfs)) })
		}
		t.Run("settings", realSettings)
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
		hold: func(group string) (interface{ Close() error }, error) { return os.OpenFile(group, os.O_RDWR, 0) },
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

// realRun is a run directory whose pool, if any, is undone when the test ends, after the pool was closed.
func realRun(t *testing.T) string {
	run := filepath.Join(t.TempDir(), "fastiov")
	t.Cleanup(func() {
		if err := vf.Undo(vf.Config{Run: run}); err != nil {
			t.Errorf("undo: %v", err)
		}
	})
	return run
}

// What the PF enforces is what the pool was told, and survives the VF's reset.
func realSettings(t *testing.T) {
	p := open(t, vf.Config{PFs: []string{"igb"}, Run: realRun(t), VF: vf.Template{VLAN: 42}, Dummy: true})
	l := lease(t, p, "a")
	check := func() {
		t.Helper()
		pf, err := netlink.LinkByName(l.Netdev)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range pf.Attrs().Vfs {
			if v.ID == l.Index && (v.Mac.String() != l.MAC || v.Vlan != 42 || !v.Spoofchk || v.Trust == 1) {
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

// Times of the emulated cards, for the record: a lease must not wait for hardware.
func realTimes(t *testing.T) {
	for _, driver := range []string{"igb", "nvme"} {
		begin := time.Now()
		p := open(t, vf.Config{PFs: []string{driver}, Run: realRun(t)})
		opened := time.Since(begin)
		first := lease(t, p, "a")
		p.Return(first)
		var leases []vf.Lease
		var slowest time.Duration
		for range p.Snapshot() {
			l := lease(t, p, "warm")
			leases = append(leases, l)
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
		for _, l := range p.Found() {
			p.Return(l)
		}
		for range leases {
			<-p.Idle()
			for begin := time.Now(); ; begin = time.Now() {
				if _, err := p.Lease(vf.Owner{Sandbox: "timed"}); err != nil {
					break
				}
				slowest = max(slowest, time.Since(begin))
			}
			if count(p, vf.Leased) == len(leases) {
				break
			}
		}
		t.Logf("%s: opened in %s; %d returns took %s, all reset and leased again after %s; slowest lease %s",
			driver, opened, len(leases), returned, reset, slowest)
		p.Close()
	}
}
