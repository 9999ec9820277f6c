//go:build trust

package main

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
)

// TestAThousandSwitches lives that many gates' lives, in worlds side by side, half of them IPv6.
// Nothing is lost, doubled or refused, and nothing is left of them.
func TestAThousandSwitches(t *testing.T) {
	const worlds = 10
	each := 100
	if testing.Short() {
		each = 5
	}
	var (
		mu  sync.Mutex
		all tally
	)
	pipe, other, err := os.Pipe() // so that Go's poller has its files by now
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer other.Close()
	files, routines := openFiles(t), runtime.NumGoroutine()
	t.Run("worlds", func(t *testing.T) {
		talker := buildTalker(t)
		for i := range worlds {
			w := newWorld(t)
			w.talker = talker
			nic := gateNICs[[]string{"IPv4", "IPv6"}[i%2]]
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				w.t = t
				var sum tally
				for n := range each {
					w.switchOnce(nic, fmt.Sprint(i, "-", n), &sum)
				}
				mu.Lock()
				defer mu.Unlock()
				all.add(sum)
			})
		}
	})
	all.check(t)
	if now := openFiles(t); now > files {
		t.Errorf("%d files are open, %d were before", now, files)
	}
	for deadline := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > routines; {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d were before", runtime.NumGoroutine(), routines)
		}
		runtime.Gosched()
	}
}

func (a *tally) add(b tally) {
	a.switches, a.sent, a.held = a.switches+b.switches, a.sent+b.sent, a.held+b.held
	a.lost, a.doubled, a.refused = a.lost+b.lost, a.doubled+b.doubled, a.refused+b.refused
	a.backward, a.dropped = a.backward+b.backward, a.dropped+b.dropped
}
