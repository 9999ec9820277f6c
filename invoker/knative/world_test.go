package knative

import (
	"fmt"
	"strings"
	"testing"

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
		events, _, err := w.since(floor, "ann")
		if err != nil || events[0].revision != floor+1 || len(events) != c.events+1-int(floor) {
			t.Errorf("%d events from %d on, %v", len(events), floor, err)
		}
		if kept := len(events) * c.bytes; kept > 2*mostWeight {
			t.Errorf("%d bytes are kept", kept)
		}
		if events, _, err = w.since(0, "bob"); err != nil || events[0].revision != 1 {
			t.Errorf("ann's events took bob's: %v", err)
		}
	}
}
