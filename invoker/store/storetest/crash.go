package storetest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/store"
)

// Load writes activations, with and without a promise, and documents to a store until something
// fails. It logs lines for Account: what it is about to do, and what was acknowledged, each line
// before it goes on.
//
//	asking ID       accepted ID       sent ID       finishing ID       finished ID NANOSECONDS
//	put NAME REVISION
func Load(ctx context.Context, s store.Store, round string, seed uint64, log io.Writer) {
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(log, format+"\n", args...)
	}
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(worker)))
			name := fmt.Sprintf("%s-%d", round, worker)
			revision, err := uint64(0), error(nil)
			for i := 0; err == nil && ctx.Err() == nil; i++ {
				id := fmt.Sprintf("%s-%d", name, i)
				end := random.IntN(4)
				if end > 0 {
					say("asking %s", id)
					body := make([]byte, random.IntN(3000))
					if err = s.Accept(ctx, store.Accepted{ID: id, Invoker: "me",
						At: time.Now(), Body: body}); err != nil {
						break
					}
					say("accepted %s", id)
				}
				if end > 1 {
					if err = s.Sent(ctx, id); err != nil {
						break
					}
					say("sent %s", id)
				}
				if end != 2 {
					r := record(id, "guest", "a", 0)
					r.Start = time.Now()
					say("finishing %s", id)
					s.Finish(r)
					say("finished %s %d", id, time.Now().UnixNano())
				}
				if random.IntN(10) == 0 {
					if revision, err = s.Put(ctx, doc(name, revision, id),
						make([]byte, random.IntN(30_000)), store.Unbounded); err == nil {
						say("put %s %d", name, revision)
					}
				}
			}
		})
	}
	wg.Wait()
}

// Losses counts the records that a crash may lose and did lose: those without a promise, or with a
// promise that is still there.
type Losses struct {
	Finished, InWindow, Late int
	// how long before the crash the oldest lost record finished
	Oldest time.Duration
}

// Account compares a store with the log of Load. Everything acknowledged is there, and each
// activation has either a promise or a record. With sharedWay, changes take the same way to the
// disk as records: then a change that was asked for after a record finished, and was acknowledged,
// has made that record durable too.
func Account(
	t testing.TB, s store.Store, log io.Reader, crash time.Time, sharedWay bool,
) (l Losses) {
	t.Helper()
	ctx := t.Context()
	unfinished := map[string]store.Accepted{}
	for _, a := range must[[]store.Accepted](t)(s.Unfinished(ctx, "me")) {
		unfinished[a.ID] = a
	}
	recorded := map[string]bool{}
	for _, id := range must[[]string](t)(List(s, ctx, store.Filter{Namespace: "guest"}, 0, 1<<30)) {
		if _, both := unfinished[id]; both || recorded[id] {
			t.Errorf("%s has two records, or a record and a promise", id)
		}
		recorded[id] = true
	}
	docs := watch(ctx, t, s)
	equal(t, "used", must[store.Space](t)(s.Used(ctx, "guest")), docs.takes(s))

	before := map[string][]string{} // the records that had finished when the change was asked for
	var finished []string
	finishing := map[string]bool{}
	for lines := bufio.NewScanner(log); lines.Scan(); {
		var what, id string
		var n int64
		if read, _ := fmt.Sscan(lines.Text(), &what, &id, &n); read < 2 {
			continue
		}
		switch what {
		case "asking":
			before[id] = finished
		case "finishing":
			finishing[id] = true
		case "accepted":
			if _, found := unfinished[id]; !found && !recorded[id] {
				t.Errorf("%s was promised and is forgotten", id)
			}
			for _, earlier := range before[id] {
				if sharedWay && !recorded[earlier] {
					t.Errorf("%s finished before %s was promised, and its record is gone",
						earlier, id)
				}
			}
		case "sent":
			if a, found := unfinished[id]; found && !a.Sent {
				t.Errorf("%s was sent, and nothing says so", id)
			}
		case "finished":
			l.Finished++
			finished = append(finished, id)
			if recorded[id] {
				continue
			}
			age := crash.Sub(time.Unix(0, n))
			l.Oldest = max(l.Oldest, age)
			if age <= store.Window {
				l.InWindow++
			} else {
				l.Late++
			}
		case "put":
			if d := docs.last(id); d.Body == nil || d.Revision < uint64(n) {
				t.Errorf("%s was put as revision %d, there is %d", id, n, d.Revision)
			}
		}
	}
	for id := range recorded {
		if round, _, _ := strings.Cut(id, "-"); !finishing[id] && len(finished) > 0 &&
			strings.HasPrefix(finished[0], round+"-") {
			t.Errorf("%s has a record and did not finish", id)
		}
	}
	return l
}

// takes returns the space of all documents that the watcher saw in the namespace, and compares it
// with Used.
func (w *seen) takes(s store.Store) (all store.Space) {
	for key, doc := range w.docs {
		if doc.Body == nil || key.Namespace != "guest" {
			continue
		}
		code, err := s.Code(w.t.Context(), key)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			w.t.Error(err)
		}
		all = all.Plus(store.Space{
			Entities: 1, Documents: int64(len(doc.Body)), Code: int64(len(code)),
		})
	}
	return all
}
