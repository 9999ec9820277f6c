package knative

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/store"
)

// Whoever watches from a revision is told each later change once, in order, however late it reads;
// and what ceases to be chosen is gone for it.
func TestAWatchReplays(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	h.ready("hello", "True")
	h.until("it is at rest", func() bool {
		was := h.must("GET", objects+"services/hello", "")
		time.Sleep(100 * time.Millisecond)
		return h.must("GET", objects+"services/hello", "") == was
	})
	h.must("PATCH", objects+"services/hello", `{"metadata":{"labels":{"a":"1"}}}`)
	h.must("PATCH", objects+"services/hello", `{"metadata":{"labels":{"a":"2"}}}`)
	_, said := h.ask("GET", objects+"services?watch=true&labelSelector=a%3D1&resourceVersion="+
		fmt.Sprint(h.api.world.floor)+"&timeoutSeconds=3", "", "")
	var got []string
	last := ""
	for line := range strings.Lines(said) {
		var e struct {
			Type   string
			Object struct {
				Metadata struct{ ResourceVersion string }
			}
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if v := e.Object.Metadata.ResourceVersion; len(v) < len(last) || v <= last {
			t.Errorf("%s comes after %s", v, last)
		} else {
			last = v
		}
		got = append(got, e.Type)
	}
	if fmt.Sprint(got) != "[ADDED DELETED]" {
		t.Errorf("the watch is told %s", got)
	}
	code, said := h.ask("GET", objects+"services?watch=true&sendInitialEvents=true&"+
		"resourceVersionMatch=NotOlderThan&timeoutSeconds=3", "", "")
	if code != 200 || !strings.Contains(said, "k8s.io/initial-events-end") {
		t.Errorf("a list by watch is answered %d %s", code, said)
	}
}

// A watch ends with its key. What happens later is not for it, whoever has the namespace then.
func TestAWatchEndsWithItsKey(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	r := httptest.NewRequest("GET", objects+"services?watch=true", nil)
	r.Header.Set("Authorization", "Bearer "+h.key.String())
	from, to := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.http.ServeHTTP(&told{httptest.NewRecorder(), to}, r)
		to.Close()
	}()
	lines := bufio.NewReader(from)
	h.must("POST", objects+"services", described("before", "example.com/hello"))
	if line, err := lines.ReadString('\n'); !strings.Contains(line, `"before"`) {
		t.Fatalf("the watch is told %q, %v", line, err)
	}
	h.key = access.NewKey()
	if err := h.api.cfg.Directory.Add(&access.Subject{Name: "ann",
		Namespaces: []access.Namespace{h.key.Owned("ann")}}); err != nil {
		t.Fatal(err)
	}
	h.must("POST", objects+"services", described("after", "example.com/hello"))
	rest, err := io.ReadAll(lines)
	if err != nil || strings.Contains(string(rest), `"after"`) {
		t.Errorf("then the watch is told %s, %v", rest, err)
	}
	<-ended
}

// A told recorder passes on what is written.
type told struct {
	*httptest.ResponseRecorder
	to io.Writer
}

func (t *told) Write(p []byte) (int, error) { return t.to.Write(p) }

// A namespace has so many watches. A client that wants one more is told when to come again, and
// gets one once another has ended.
func TestWatchesAreBounded(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	var end func()
	for range mostWatches {
		var err error
		if end, err = h.api.watches.enter("ann"); err != nil {
			t.Fatal(err)
		}
	}
	r, w := h.request("GET", objects+"services?watch=true&timeoutSeconds=3", "")
	h.http.ServeHTTP(w, r)
	if w.Code != 429 || w.Header().Get("Retry-After") == "" ||
		!strings.Contains(w.Body.String(), "TooManyRequests") {
		t.Errorf("one more watch is answered %d %v %s", w.Code, w.Header(), w.Body)
	}
	end()
	code, said := h.ask("GET", objects+"services?watch=true&timeoutSeconds=3", "", "")
	if code != 200 {
		t.Errorf("a watch in the place of another is answered %d %s", code, said)
	}
	if _, err := h.api.watches.enter("ann"); err != nil {
		t.Errorf("a watch that has ended is counted: %v", err)
	}
}

// A watched is a world of ann's routes with one watcher, in a bubble of the test. Its time goes on
// when all rest.
type watched struct {
	t     *testing.T
	api   *API
	begun time.Time
	leave context.CancelFunc
	ended chan struct{}
	mu    sync.Mutex
	wrote []written
}

// A written holds the events of one write of the watcher's.
type written struct {
	after     time.Duration // the beginning
	revisions []string
	types     string
}

func newWatched(t *testing.T) *watched {
	w := &watched{t: t, begun: time.Now(), api: &API{world: newWorld(), closed: make(chan struct{}),
		watches: newReaders("watches", mostWatches)}}
	w.api.world.opened = true
	w.api.cfg.Identify = func(*http.Request, access.Key) (*access.Identity, error) {
		return &access.Identity{Namespace: "ann"}, nil
	}
	w.changes(1)
	return w
}

// changes has a route change so many times.
func (w *watched) changes(times int) {
	w.t.Helper()
	for range times {
		next := w.api.world.reached() + 1
		if err := w.api.world.see(store.Doc{Key: storeKey(routes, "ann", "r"), Revision: next,
			Body: []byte(`{"metadata":{"name":"r","namespace":"ann"}}`)}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// watch begins a watch after a revision, which is at rest then.
func (w *watched) watch(after string, how metav1.ListOptions) {
	w.t.Helper()
	all, err := routes.chosen("", "")
	if err != nil {
		w.t.Fatal(err)
	}
	how.ResourceVersion, how.AllowWatchBookmarks = after, true
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	ctx, leave := context.WithCancel(w.t.Context())
	w.leave, w.ended = leave, make(chan struct{})
	c := &call{API: w.api, w: &told{httptest.NewRecorder(), w}, r: r.WithContext(ctx),
		user: &access.Identity{Namespace: "ann"}}
	go func() {
		defer close(w.ended)
		if err := c.watch(routes, all, how); err != nil {
			w.t.Errorf("the watch ends: %v", err)
		}
	}()
	synctest.Wait()
}

// Write takes what the watcher writes at once.
func (w *watched) Write(p []byte) (int, error) {
	one := written{after: time.Since(w.begun)}
	for line := range strings.Lines(string(p)) {
		var e struct {
			Type   string
			Object struct {
				Code     int
				Metadata struct{ ResourceVersion string }
			}
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			w.t.Errorf("the watch is told %q: %v", line, err)
		}
		if one.types += e.Type[:1]; e.Type == "ERROR" {
			one.types += strconv.Itoa(e.Object.Code)
		} else {
			one.revisions = append(one.revisions, e.Object.Metadata.ResourceVersion)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wrote = append(w.wrote, one)
	return len(p), nil
}

// has checks what the watcher has written.
func (w *watched) has(what string, want ...written) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if got, wanted := fmt.Sprint(w.wrote), fmt.Sprint(want); got != wanted {
		w.t.Errorf("%s: it wrote %s, want %s", what, got, wanted)
	}
}

// A watcher that was told nothing lately is told the next event at once. What happens while it
// rests after that leaves as one, in order, as soon as it has rested.
func TestAWatcherRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		w.watch("1", metav1.ListOptions{})
		time.Sleep(time.Second)
		w.changes(1)
		first := written{time.Second, []string{"2"}, "M"}
		w.has("a quiet watcher's event", first)
		for range 3 {
			time.Sleep(betweenParts / 4)
			w.changes(2)
			w.has("in the rest", first)
		}
		time.Sleep(betweenParts / 4)
		burst := written{time.Second + betweenParts,
			[]string{"3", "4", "5", "6", "7", "8"}, "MMMMMM"}
		w.has("after the rest", first, burst)
		time.Sleep(betweenParts - 1)
		w.changes(1)
		w.has("in the rest after the burst", first, burst)
		time.Sleep(time.Nanosecond)
		last := written{time.Second + 2*betweenParts, []string{"9"}, "M"}
		w.has("after that", first, burst, last)
		time.Sleep(betweenParts)
		w.changes(1)
		w.has("once it is quiet again", first, burst, last,
			written{time.Second + 3*betweenParts, []string{"10"}, "M"})
		w.leave()
		<-w.ended
	})
}

// However a watch ends while it rests, a watch from what it told last goes on with the next event,
// and each is told once.
func TestAWatchEndsInItsRest(t *testing.T) {
	for what, end := range map[string]func(*watched){
		"its time is over": func(*watched) { time.Sleep(betweenParts / 2) },
		"its client goes":  func(w *watched) { w.leave() },
		"the process ends": func(w *watched) { close(w.api.closed) },
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWatched(t)
			w.watch("1", metav1.ListOptions{TimeoutSeconds: ptr.To(int64(1))})
			time.Sleep(time.Second - betweenParts/2)
			w.changes(1)
			w.has(what, written{time.Second - betweenParts/2, []string{"2"}, "M"})
			w.changes(2)
			end(w)
			<-w.ended
			told := w.revisions()
			w.api.closed = make(chan struct{})
			w.watch(told[len(told)-1], metav1.ListOptions{})
			w.changes(1)
			time.Sleep(betweenParts)
			synctest.Wait()
			w.leave()
			<-w.ended
			if told = w.revisions(); !slices.Equal(told, []string{"1", "2", "3", "4", "5"}) {
				t.Errorf("%s: both watches are told %s", what, told)
			}
		})
	}
}

// revisions returns the one that the first watch began after, and all that were told.
func (w *watched) revisions() []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	all := []string{"1"}
	for _, one := range w.wrote {
		all = append(all, one.revisions...)
	}
	return all
}

// A watcher that rests while more happens than is kept is told that it missed some, and no event
// after those.
func TestAWatcherThatRestsTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		w.watch("1", metav1.ListOptions{})
		w.changes(1)
		w.has("before", written{0, []string{"2"}, "M"})
		w.changes(3 * mostWeight / lightest)
		<-w.ended
		w.has("after", written{0, []string{"2"}, "M"}, written{betweenParts, nil, "E410"})
	})
}

// A watcher is told how far it is though nothing happens, and then goes on.
func TestAQuietWatcherIsToldHowFarItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		w.watch("1", metav1.ListOptions{})
		time.Sleep(bookmarkEvery)
		bookmark := written{bookmarkEvery, []string{"1"}, "B"}
		w.has("a bookmark", bookmark)
		w.changes(1)
		w.has("in the rest", bookmark)
		time.Sleep(betweenParts)
		w.has("an event", bookmark, written{bookmarkEvery + betweenParts, []string{"2"}, "M"})
		w.leave()
		<-w.ended
	})
}
