package knative

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/store"
)

// Events that fell out of the log are refused, and those in it are all there: of small objects so
// many, of large ones so many bytes.
func TestTheLogHasABound(t *testing.T) {
	for _, c := range []struct{ events, bytes int }{
		{2*mostWeight/lightest + 10, 0}, {2*mostWeight>>20 + 10, 1 << 20},
	} {
		w := newWorld()
		w.opened = true
		see := func(revision int, namespace string) {
			body := fmt.Appendf(nil, `{"kind":"Route","metadata":{"name":"r","namespace":%q,`+
				`"annotations":{"a":"%s"}}}`, namespace, strings.Repeat("x", c.bytes))
			if err := w.see(store.Doc{Key: storeKey(routes, namespace, "r"),
				Revision: uint64(revision), Body: body}); err != nil {
				t.Fatal(err)
			}
		}
		see(1, "bob")
		for n := range c.events {
			see(2+n, "ann")
		}
		if _, _, err := w.since(2, "ann"); err != errExpired {
			t.Errorf("the oldest events are answered %v", err)
		}
		if _, _, err := w.since(w.revision+1, "ann"); err != errExpired {
			t.Errorf("events that are not yet are answered %v", err)
		}
		floor := w.floors["ann"]
		n := 0
		for at := floor; at < w.revision; {
			events, _, err := w.since(at, "ann")
			if err != nil || len(events) == 0 || len(events) > mostAtOnce {
				t.Fatalf("%d events from %d on, %v", len(events), at, err)
			}
			weight := 0
			for _, e := range events {
				if n, at = n+1, at+1; e.revision != at {
					t.Fatalf("event %d is %d", at, e.revision)
				}
				weight += e.weight()
			}
			if last := events[len(events)-1].weight(); weight-last >= weightAtOnce {
				t.Fatalf("%d bytes are handed out at once", weight)
			}
		}
		if n != c.events+1-int(floor) {
			t.Errorf("%d events from %d on", n, floor)
		}
		if kept := n * c.bytes; kept > 2*mostWeight {
			t.Errorf("%d bytes are kept", kept)
		}
		if events, _, err := w.since(0, "bob"); err != nil || events[0].revision != 1 {
			t.Errorf("ann's events took bob's: %v", err)
		}
	}
}

// Changes of one object wait for its own write alone, and a status for none that is written behind
// what is seen.
func TestWritesOfOneObjectTakeTurns(t *testing.T) {
	w := newWorld()
	of := func(n string) ref { return ref{routes, name{"ann", n}} }
	release := w.hold(of("a"), write{})
	w.hold(of("b"), write{})()
	next := make(chan bool)
	go func() {
		defer w.hold(of("a"), write{})()
		close(next)
	}()
	select {
	case <-next:
		t.Fatal("two write one object")
	case <-time.After(10 * time.Millisecond):
	}
	release()
	<-next
	w.hold(of("a"), write{})()
	if len(w.busy) > 0 {
		t.Errorf("%d objects are being written still", len(w.busy))
	}
}
