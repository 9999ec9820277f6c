package vf_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/node-agent/vf/vftest"
)

func TestFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		tree.ResetTime = 100 * time.Millisecond
		p := open(t, tree.Config())
		returnLost(t, p, func(vf.News) {})
		l := lease(t, p, "a")
		idle := p.Snapshot()[1]
		for _, bdf := range []string{l.BDF, idle.BDF, "0000:ff:1f.7"} {
			p.Fault(bdf, "uncorrectable error")
		}
		synctest.Wait()
		if n := count(p, vf.Resetting); n != 2 {
			t.Errorf("%d VFs are reset after their faults, want 2", n)
		}
		time.Sleep(tree.ResetTime)
		synctest.Wait()
		if s := status(t, p, l.BDF); s.State != vf.Idle || s.Faults != 1 {
			t.Errorf("the VF is %+v", s)
		}
	})
}

// A VF that fails tenant after tenant is quarantined, each time for longer. One tenant that it
// serves well clears its record.
func TestAVFThatFailsTenantAfterTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		p := open(t, tree.Config())
		returnLost(t, p, func(vf.News) {})
		bdf := p.Snapshot()[0].BDF
		tenant := func(fails bool) vf.Status {
			leases := []vf.Lease{lease(t, p, "a")}
			for leases[len(leases)-1].BDF != bdf {
				leases = append(leases, lease(t, p, "a"))
			}
			if fails {
				p.Fault(bdf, "uncorrectable error")
				p.Fault(bdf, "and once more")
			}
			for _, l := range leases {
				p.Return(l) // does nothing where the lease has ended
			}
			synctest.Wait()
			return status(t, p, bdf)
		}
		for range 2 {
			tenant(true)
			if s := tenant(true); s.State != vf.Idle {
				t.Fatalf("after two tenants that it failed the VF is %+v", s)
			}
			tenant(false)
		}
		tenant(true)
		tenant(true)
		var before time.Duration
		for range 3 {
			s := tenant(true)
			rest := time.Until(s.RetryAt)
			if s.State != vf.Quarantined || !strings.Contains(s.Reason, "tenants in a row") ||
				rest <= before {
				t.Fatalf("the VF rests %v (%v before): %+v", rest, before, s)
			}
			before = rest
			time.Sleep(rest)
			synctest.Wait()
		}
	})
}

// A few refusals by the IOMMU change nothing. A storm ends the tenant; the VF is reset, and then
// quarantined for a while.
func TestStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		tree.Refused = make(chan string) // of this bubble
		lost := ""
		p := open(t, tree.Config())
		returnLost(t, p, func(n vf.News) { lost = n.Lost })
		l := lease(t, p, "a")
		refuse := func(n int) {
			for range n {
				tree.Refused <- l.BDF
				tree.Refused <- "0000:ff:1f.7"
			}
			synctest.Wait()
		}
		for range 3 {
			refuse(4)
			if s := status(t, p, l.BDF); s.State != vf.Leased || lost != "" {
				t.Fatalf("after some refusals the VF is %+v", s)
			}
			time.Sleep(11 * time.Second)
		}
		refuse(30)
		if s := status(t, p, l.BDF); s.State != vf.Quarantined || s.Faults != 1 ||
			!strings.Contains(lost, "IOMMU") {
			t.Errorf("after a storm the VF is %+v, its tenant was told %q", s, lost)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if s := status(t, p, l.BDF); s.State != vf.Idle {
			t.Errorf("the VF is %+v", s)
		}
	})
}
