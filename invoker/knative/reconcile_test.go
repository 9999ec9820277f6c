package knative

import (
	"bytes"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"knative.dev/serving/pkg/apis/serving"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/embedded"
)

func aHouse(t *testing.T) (h *house, leave func()) {
	t.Helper()
	return newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
}

// annotated is a service whose template has an annotation.
func annotated(service, key, value string) string {
	return strings.Replace(service, `"template":{`, fmt.Sprintf(
		`"template":{"metadata":{"annotations":{%q:%q}},`, key, value), 1)
}

// Where a namespace is full, the service says so, though its own status takes room.
func TestAFullNamespaceIsSaid(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	for i := range 98 {
		doc := store.Doc{Key: store.Key{Kind: store.Actions, Namespace: "ann",
			Name: fmt.Sprint("a", i)}, Body: []byte("{}")}
		if _, err := h.store.Put(t.Context(), doc, nil, store.Unbounded); err != nil {
			t.Fatal(err)
		}
	}
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	if why := h.ready("hello", "False"); !strings.Contains(why, "101 entities; at most 100") {
		t.Errorf("it says %q", why)
	}
}

// A revision that no node has room for says so at once, and has failed in the end.
func TestARevisionWithoutRoom(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	large := strings.Replace(described("hello", "example.com/hello"), `"ports"`,
		`"resources":{"limits":{"memory":"1Ti"}},"ports"`, 1)
	h.must("POST", objects+"services",
		annotated(large, "serving.knative.dev/progress-deadline", "8s"))
	h.ready("hello", "False")
	if said := h.must("GET", objects+"revisions/hello-00001", ""); !strings.Contains(said,
		`"reason":"Unschedulable"`) || !strings.Contains(said, "no node has more than") {
		t.Errorf("its revision is %s", said)
	}
	h.until("its first start has failed", func() bool {
		return strings.Contains(h.must("GET", objects+"revisions/hello-00001", ""),
			`"reason":"ProgressDeadlineExceeded"`)
	})
}

// A host is that of the route which had it first, until that gives it up.
func TestAHostIsOneRoutes(t *testing.T) {
	path, key := filepath.Join(t.TempDir(), "store"), access.NewKey()
	h, leave := newHouse(t, path, key)
	h.must("POST", objects+"services", described("b", "example.com/hello"))
	h.ready("b", "True")
	const tagged = `{"spec":{"traffic":[{"latestRevision":true,"percent":100,"tag":"a"}]}}`
	h.must("PATCH", objects+"services/b", tagged)
	h.ready("b", "True")
	h.must("POST", objects+"services", described("a-b", "example.com/hello"))
	if why := h.ready("a-b", "False"); !strings.Contains(why,
		`There is an existing placeholder Service "a-b" that we do not own.`) {
		t.Errorf("the second says %q", why)
	}
	leave() // the next process reads the second's route first
	h, leave = newHouse(t, path, key)
	defer leave()
	if code, said := h.curl("a-b.ann.localhost", "/"); code != 200 ||
		!strings.Contains(said, "b-00001") {
		t.Errorf("%d %q, want the first's", code, said)
	}
	h.must("PATCH", objects+"services/b", strings.Replace(tagged, `"a"`, `"c"`, 1))
	h.ready("a-b", "True")
	if code, said := h.curl("a-b.ann.localhost", "/"); code != 200 ||
		!strings.Contains(said, "a-b-00001") {
		t.Errorf("%d %q, want the second's", code, said)
	}
}

// As many sandboxes as min-scale says are there without a request, for revisions with traffic.
func TestMinScaleIsKept(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	const least = "autoscaling.knative.dev/min-scale"
	started := func(n int64) {
		h.t.Helper()
		h.until(fmt.Sprint(n, " have started"), func() bool { return h.node.starts.Load() == n })
	}
	h.must("POST", objects+"services",
		annotated(described("hello", "example.com/hello"), least, "3"))
	h.ready("hello", "True")
	started(3)
	h.must("PATCH", objects+"services/hello", fmt.Sprintf(`{"spec":{"template":{"metadata":{
		"annotations":{%q:"2"}}}}}`, least))
	h.until("the second has the traffic", func() bool {
		_, said := h.curl("hello.ann.localhost", "/")
		return strings.Contains(said, "hello-00002")
	})
	started(5)
	const second = objects + "revisions/hello-00002"
	h.must("PATCH", second, fmt.Sprintf(`{"metadata":{"annotations":{%q:"4"}}}`, least))
	started(7) // those of the second revision alone
	h.must("PATCH", second, fmt.Sprintf(`{"metadata":{"annotations":{%q:null,%q:"6s"}}}`, least,
		"autoscaling.knative.dev/window"))
	h.pool.Retire(groupOf(h.api.world.get(revisions, "ann", "hello-00001").object.(*v1.Revision)))
	h.until("none is kept", func() bool { return h.pool.Snapshot().Nodes[0].Boxes == 0 })
}

// What an owner leaves goes when nobody has a finalizer in it any more.
func TestAFinalizerIsWaitedFor(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	h.ready("hello", "True")
	const config = objects + "configurations/hello"
	h.must("PATCH", config, `{"metadata":{"finalizers":["example.com/mine"]}}`)
	h.must("DELETE", objects+"services/hello", "")
	h.until("the configuration is about to go", func() bool {
		return strings.Contains(h.must("GET", config, ""), "deletionTimestamp")
	})
	h.must("PATCH", config, `{"metadata":{"finalizers":null}}`)
	h.until("it goes", func() bool {
		code, _ := h.ask("GET", config, "", "")
		return code == 404
	})
}

// How it was with objects may be lost in a crash. The next process finds it out again.
func TestStatusIsFoundOutAgain(t *testing.T) {
	path, key := filepath.Join(t.TempDir(), "store"), access.NewKey()
	h, leave := newHouse(t, path, key)
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	h.ready("hello", "True")
	leave()
	s, err := embedded.Open(path, 64<<20, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var docs []store.Doc
	if err := s.Watch(t.Context(), func(doc store.Doc) {
		if ofStore(string(doc.Kind)) != nil {
			docs = append(docs, doc)
		}
	}); err != nil {
		t.Fatal(err)
	}
	for _, doc := range docs {
		at := bytes.Index(doc.Body, []byte(`,"status":{`))
		if at < 0 {
			t.Fatalf("nothing was written later of %s", doc.Body)
		}
		doc.Body = append(doc.Body[:at:at], '}')
		if _, err := s.Put(t.Context(), doc, nil, store.Unbounded); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	h, leave = newHouse(t, path, key)
	defer leave()
	h.ready("hello", "True")
	if code, said := h.curl("hello.ann.localhost", "/"); code != 200 ||
		!strings.Contains(said, "hello-00001") {
		t.Errorf("%d %q", code, said)
	}
}

// A revision's runtimeClassName is the runtime handler that its node is asked for.
func TestARevisionNamesItsHandler(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", objects+"services", strings.Replace(described("hello", "example.com/hello"),
		`"containers"`, `"runtimeClassName":"runsc","containers"`, 1))
	h.ready("hello", "True")
	h.node.mu.Lock()
	defer h.node.mu.Unlock()
	for id, started := range h.node.live {
		if started.Handler != "runsc" {
			t.Errorf("%s is started by %q", id, started.Handler)
		}
	}
	if len(h.node.live) == 0 {
		t.Error("nothing is started")
	}
}

// A route that pins a revision which is not there says so, though it came before its configuration.
func TestARouteBeforeItsConfiguration(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	h.ready("hello", "True")
	owner := h.api.world.get(kindOf(serving.GroupName, "Service"), "ann", "hello").object.GetUID()
	h.must("POST", objects+"routes", fmt.Sprintf(`{"metadata":{"name":"pins","ownerReferences":[
		{"apiVersion":"serving.knative.dev/v1","kind":"Service","name":"hello","uid":%q,
		"controller":true}]},"spec":{"traffic":[{"revisionName":"none","percent":100}]}}`, owner))
	time.Sleep(100 * time.Millisecond) // it is reconciled
	h.must("POST", objects+"configurations", described("pins", "example.com/hello"))
	h.until("the route says what it lacks", func() bool {
		return strings.Contains(h.must("GET", objects+"routes/pins", ""), "RevisionMissing")
	})
}

// A revision that is deleted while its sandboxes are to be kept leaves none.
func TestADeletedRevisionKeepsNone(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", objects+"services", annotated(described("hello", "example.com/hello"),
		"autoscaling.knative.dev/min-scale", "2"))
	h.ready("hello", "True")
	boxes := func() int { return h.pool.Snapshot().Nodes[0].Boxes }
	h.until("two are kept", func() bool { return boxes() == 2 })
	e := h.api.world.get(revisions, "ann", "hello-00001")
	h.must("DELETE", objects+"services/hello", "")
	h.until("none is left", func() bool { return boxes() == 0 })
	r := h.api.reconcile
	r.mu.Lock() // as if the route led there still when this was asked
	r.of[ref{revisions, e.name}] = map[name]bool{{"ann", "hello"}: true}
	r.mu.Unlock()
	r.scale(e, e.object.(*v1.Revision))
	h.until("none is kept", func() bool { return boxes() == 0 })
}

// starting has a service made, and returns its revision when the first sandbox of that is being
// started.
func (h *house) starting(service string) *entry {
	h.t.Helper()
	before := h.node.starts.Load()
	h.must("POST", objects+"services", described(service, "example.com/hello"))
	h.until("its first sandbox is being started", func() bool {
		return h.node.starts.Load() > before
	})
	return h.api.world.get(revisions, "ann", service+"-00001")
}

// removed has a service deleted, and returns when its revision is gone.
func (h *house) removed(service string) {
	h.t.Helper()
	h.must("DELETE", objects+"services/"+service, "")
	h.until("its revision is gone", func() bool {
		return h.api.world.get(revisions, "ann", service+"-00001") == nil
	})
}

func (r *reconciler) proves(v *entry) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proved[v.object.GetUID()]
}

// A revision that is deleted while its first sandbox starts has no other started.
func TestARevisionIsDeletedWhileItBegins(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.node.held = make(chan struct{})
	v := h.starting("hello")
	h.removed("hello")
	close(h.node.held)
	h.until("nothing is proved any more", func() bool { return !h.api.reconcile.proves(v) })
	if n := h.node.starts.Load(); n != 1 {
		t.Errorf("%d starts, want 1", n)
	}
	h.until("none is left", func() bool { return h.pool.Snapshot().Nodes[0].Boxes == 0 })
}

// What a revision has had started says nothing of the one that has its name after it.
func TestARevisionsNameIsTakenAnew(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.node.held = make(chan struct{})
	defer close(h.node.held)
	r := h.api.reconcile
	first := h.starting("hello")
	h.removed("hello")
	second := h.starting("hello")
	r.judge(r.context(t.Context()), first, nil)
	if r.proves(first) || !r.proves(second) {
		t.Errorf("the first is proved: %t, the second: %t", r.proves(first), r.proves(second))
	}
}

// A revision's labels say whether a route leads to it.
func TestARevisionSaysItsRoutes(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	says := func(of, state, by string) func() bool {
		return func() bool {
			e := h.api.world.get(revisions, "ann", of)
			if e == nil {
				return false
			}
			v := e.object.(*v1.Revision)
			return string(v.GetRoutingState()) == state &&
				v.Annotations[serving.RoutesAnnotationKey] == by
		}
	}
	of := described("hello", "example.com/hello")
	h.must("POST", objects+"configurations", of)
	h.until("it is pending", says("hello-00001", "pending", ""))
	h.must("POST", objects+"routes", `{"metadata":{"name":"way"},"spec":{"traffic":[
		{"configurationName":"hello","percent":100}]}}`)
	h.until("it is active", says("hello-00001", "active", "way"))
	h.must("PATCH", objects+"configurations/hello", `{"spec":{"template":{"spec":{
		"containers":[{"image":"example.com/other"}]}}}}`)
	h.until("the next is active", says("hello-00002", "active", "way"))
	h.until("the former is in reserve", says("hello-00001", "reserve", ""))
}

// A revision whose initial scale is not reached in time says so, and is tried again.
func TestAnInitialScaleThatIsNotReached(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", objects+"services", annotated(described("hello", "example.com/hello"),
		"autoscaling.knative.dev/initial-scale", "1000000"))
	h.until("it is begun", func() bool {
		h.api.road.scales.mu.Lock()
		defer h.api.road.scales.mu.Unlock()
		return len(h.api.road.scales.of) > 0
	})
	e := h.api.world.get(revisions, "ann", "hello-00001")
	h.api.reconcile.begin(t.Context(), e, e.object.(*v1.Revision),
		time.Now().Add(-roomWithin-time.Second), soonest)
	h.ready("hello", "False")
	said := h.must("GET", objects+"revisions/hello-00001", "")
	if !strings.Contains(said, `"reason":"Unschedulable"`) || !strings.Contains(said,
		"the initial scale of 1000000 sandboxes has not been reached within 10s") {
		t.Errorf("its revision is %s", said)
	}
	h.until("it is tried again", func() bool {
		h.api.reconcile.mu.Lock()
		defer h.api.reconcile.mu.Unlock()
		return h.api.reconcile.proved[e.object.GetUID()]
	})
}
