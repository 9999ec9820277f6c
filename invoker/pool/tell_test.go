package pool

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
)

// Who follows a pool is told of each sandbox as it starts, is ready and goes, and first of those
// that there are.
func TestSandboxesAreTold(t *testing.T) {
	in(t, Config{KeepAlive: time.Minute}, vfs(2), func(t *testing.T, p *Pool, n *fakeNode) {
		hold(t, p, work("a").Demand).Release(true)
		var told []string
		p.Tell(func(s Sandbox) {
			told = append(told, fmt.Sprint(s.Group, " ", s.Ready, s.Gone, s.Why != nil))
			if s.Client == nil || s.ID == "" || s.Ready && s.Started == nil {
				t.Errorf("told of %+v", s)
			}
		})
		hold(t, p, work("b").Demand).Release(true)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		want := []string{"a true false false", "b false false false", "b true false false",
			"a false true false", "b false true false"}
		if !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

// With the news that a sandbox has gone comes why, if nobody wanted that.
func TestACrashIsToldWithItsReason(t *testing.T) {
	ending(t, func(t *testing.T, p *Pool, n *fakeNode, id string) {
		var why []error
		p.Tell(func(s Sandbox) {
			if s.Gone {
				why = append(why, s.Why)
			}
		})
		n.die(id)
		n.ends <- &api.Ended{Id: id, Failed: true, Reason: "out of memory"}
		synctest.Wait()
		if len(why) != 1 || why[0] == nil || why[0].Error() != "out of memory" {
			t.Errorf("told %v", why)
		}
	})
}

// It comes also where the crash was not heard of: found when the node was heard again, by a call,
// or because its node has been lost.
func TestACrashThatIsNotHeardIsToldWithItsReason(t *testing.T) {
	for words, crash := range map[string]func(p *Pool, n *fakeNode){
		"its node has it no more": func(p *Pool, n *fakeNode) {
			n.mu.Lock()
			broken := n.ends
			n.ends = make(chan *api.Ended)
			n.mu.Unlock()
			close(broken)
			time.Sleep(2 * hurry)
		},
		"no sandbox fn-": func(p *Pool, n *fakeNode) { atOnce(p, work("a")) },
		"out of reach for too long: local: no route": func(p *Pool, n *fakeNode) {
			n.setDeaf(true)
			time.Sleep(time.Minute)
			n.setDeaf(false)
			time.Sleep(time.Minute)
		},
	} {
		ending(t, func(t *testing.T, p *Pool, n *fakeNode, id string) {
			var why error
			p.Tell(func(s Sandbox) {
				if s.Gone && s.ID == id {
					why = s.Why
				}
			})
			n.die(id)
			crash(p, n)
			synctest.Wait()
			if why == nil || !strings.Contains(why.Error(), words) {
				t.Errorf("told %v, want %q", why, words)
			}
		})
	}
}
