package vf_test

import (
	"fmt"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/node-agent/vf/vftest"
)

// A late or slow reader is shown each lease that is still lost, with the reason, and the last
// change of each VF. The pool does not wait for it.
func TestASlowReaderMissesNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := makeTree(t, vftest.IGB)
		tree.ResetTime = 100 * time.Millisecond
		p := open(t, tree.Config())
		next, stop := iter.Pull(p.Watch(t.Context()))
		defer stop()
		if news, _ := next(); len(news) != 7 || len(news[0].Settled) != 1 ||
			news[0].Settled[0].From != vf.Preparing || news[0].Settled[0].Took != tree.ResetTime {
			t.Errorf("at first a reader is shown %+v", news)
		}
		kept, goes := lease(t, p, "kept"), lease(t, p, "goes")
		p.Fault(kept.BDF, "an error")
		p.Fault(goes.BDF, "an error of one who returns it")
		p.Return(goes)
		begin := time.Now()
		const rounds = 50 // for each VF more jobs than anybody keeps
		for range rounds {
			var leases []vf.Lease
			for range 6 {
				leases = append(leases, lease(t, p, "goes"))
			}
			for _, l := range leases {
				p.Return(l)
			}
		}
		if took := time.Since(begin); took != rounds*tree.ResetTime {
			t.Errorf("a reader that does not read held the pool up: %v", took)
		}
		slow, _ := next()
		late, stopLate := iter.Pull(p.Watch(t.Context()))
		defer stopLate()
		now, _ := late()
		for reader, news := range map[string][]vf.News{"slow": slow, "late": now} {
			lost := ""
			for _, n := range news {
				if n.Lost != "" {
					lost += fmt.Sprintf("%s of %s: %s", n.BDF, n.Owner, n.Lost)
				}
				if want := min(rounds, 16); n.BDF != kept.BDF && len(n.Settled) != want {
					t.Errorf("the %s reader is shown %d jobs, want %d",
						reader, len(n.Settled), want)
				}
			}
			if want := kept.BDF + " of kept: an error"; lost != want {
				t.Errorf("the %s reader is shown %q, want %q", reader, lost, want)
			}
		}
	})
}

// A reader's loop ends with its context, and with the pool.
func TestWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t, makeTree(t, vftest.IGB).Config())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for range p.Watch(t.Context()) {
			}
		}()
		synctest.Wait()
		p.Close()
		<-ended
	})
}
