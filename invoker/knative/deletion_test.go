package knative

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/embedded"
)

const texts = "/api/v1/namespaces/ann/configmaps"

// is returns the metadata of an object; nil: it is not there.
func (h *house) is(path string) *metav1.ObjectMeta {
	h.t.Helper()
	var o metav1.PartialObjectMetadata
	code, text := h.ask(http.MethodGet, path, "", "")
	if code == http.StatusNotFound {
		return nil
	}
	if err := json.Unmarshal([]byte(text), &o); err != nil || code != http.StatusOK {
		h.t.Fatalf("%s: %d %s %v", path, code, text, err)
	}
	return &o.ObjectMeta
}

func (h *house) gone(path string) {
	h.t.Helper()
	h.until(path+" is gone", func() bool { return h.is(path) == nil })
}

// owned makes a ConfigMap that names owners: paths of objects, and whether each waits for it.
func (h *house) owned(name string, owners map[string]bool, finalizers ...string) {
	h.t.Helper()
	meta := metav1.ObjectMeta{Name: name, Finalizers: finalizers}
	for path, waits := range owners {
		var o metav1.PartialObjectMetadata
		if err := json.Unmarshal([]byte(h.must(http.MethodGet, path, "")), &o); err != nil {
			h.t.Fatal(err)
		}
		meta.OwnerReferences = append(meta.OwnerReferences, metav1.OwnerReference{
			APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name, UID: o.UID,
			BlockOwnerDeletion: &waits})
	}
	text, _ := json.Marshal(metav1.PartialObjectMetadata{ObjectMeta: meta})
	h.must(http.MethodPost, texts, string(text))
}

func (h *house) delete(path, options string) {
	h.t.Helper()
	h.must(http.MethodDelete, path, `{"kind":"DeleteOptions","apiVersion":"v1",`+options+`}`)
}

const (
	foreground = `"propagationPolicy":"Foreground"`
	orphan     = `"propagationPolicy":"Orphan"`
	background = `"propagationPolicy":"Background"`
)

// In the background an owner goes first; in the foreground it goes after those alone that it waits
// for; and what is orphaned stays, and names it no more.
func TestWhatAnOwnerLeaves(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	const service, config = objects + "services/hello", objects + "configurations/hello"
	made := func() {
		h.must("POST", objects+"services", described("hello", "example.com/hello"))
		h.ready("hello", "True")
	}
	made()
	h.owned("with", map[string]bool{service: false})
	h.delete(service, background)
	if h.is(service) != nil {
		t.Error("it is there still")
	}
	for _, path := range []string{texts + "/with", config, objects + "revisions/hello-00001"} {
		h.gone(path)
	}

	made()
	h.owned("lasting", map[string]bool{service: false}, "example.com/mine")
	h.owned("awaited", map[string]bool{service: true}, "example.com/mine")
	h.delete(service, foreground)
	h.gone(config)
	h.gone(objects + "revisions/hello-00001")
	h.until("all are about to go", func() bool {
		return h.is(texts+"/lasting").DeletionTimestamp != nil &&
			h.is(texts+"/awaited").DeletionTimestamp != nil
	})
	if is := h.is(service); is == nil || fmt.Sprint(is.Finalizers) != "[foregroundDeletion]" {
		t.Errorf("what waits is %+v", is)
	}
	h.must("PATCH", texts+"/awaited", `{"metadata":{"finalizers":null}}`)
	h.gone(service)
	if h.is(texts+"/lasting") == nil {
		t.Error("a finalizer is not waited for")
	}
	h.must("PATCH", texts+"/lasting", `{"metadata":{"finalizers":null}}`)

	made()
	h.owned("left", map[string]bool{service: true, config: true})
	h.delete(service, orphan)
	h.gone(service)
	if is := h.is(texts + "/left"); is == nil || len(is.OwnerReferences) != 1 {
		t.Errorf("left is %+v", is)
	}
	if is := h.is(config); is == nil || len(is.OwnerReferences) != 0 ||
		is.DeletionTimestamp != nil {
		t.Errorf("the configuration is %+v", is)
	}
}

// What several own stays with the last of them. Two that own each other do not wait for each other.
func TestSeveralOwners(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.owned("a", nil)
	h.owned("b", nil)
	h.owned("both", map[string]bool{texts + "/a": true, texts + "/b": true})
	h.delete(texts+"/a", background)
	h.until("one owner is left", func() bool {
		return len(h.is(texts+"/both").OwnerReferences) == 1
	})
	h.delete(texts+"/b", foreground)
	h.gone(texts + "/both")
	h.gone(texts + "/b")

	h.owned("x", nil)
	h.owned("y", map[string]bool{texts + "/x": true})
	h.must("PATCH", texts+"/x", fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1",
		"kind":"ConfigMap","name":"y","uid":%q,"blockOwnerDeletion":true}]}}`, h.is(texts+"/y").UID))
	h.delete(texts+"/x", foreground)
	h.gone(texts + "/x")
	h.gone(texts + "/y")
}

// referring is a reference of an object to one of that kind, name and UID.
func referring(kind, name, uid string, waits bool) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":%q,"name":%q,"uid":%q,"blockOwnerDeletion":%t}`,
		kind, name, uid, waits)
}

// owners sets the owners of an object.
func (h *house) owners(path string, all ...string) {
	h.t.Helper()
	h.must("PATCH", path, `{"metadata":{"ownerReferences":[`+strings.Join(all, ",")+`]}}`)
}

// An owner that waits goes on when what it waits for names it no more. It does not wait for one
// that waits for it, or for one that only says its UID.
func TestAnOwnerWaitsForNobodyElse(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	uid := func(of string) string { return string(h.is(texts + "/" + of).UID) }
	to := func(of string) string { return referring("ConfigMap", of, uid(of), true) }
	h.owned("x", nil)
	h.owned("z", nil)
	h.owned("y", map[string]bool{texts + "/x": true, texts + "/z": true})
	h.delete(texts+"/x", foreground)
	h.gone(texts + "/x")
	if y := h.is(texts + "/y"); len(y.OwnerReferences) != 1 || y.DeletionTimestamp != nil {
		t.Errorf("what stays is %+v", y)
	}

	h.owned("x", nil)
	h.owned("held", map[string]bool{texts + "/x": true}, "example.com/mine")
	h.delete(texts+"/x", foreground)
	h.owners(texts + "/held")
	h.gone(texts + "/x")

	h.owned("self", nil)
	h.owners(texts+"/self", to("self"))
	h.delete(texts+"/self", foreground)
	h.gone(texts + "/self")

	h.owned("x", nil)
	h.owned("liar", nil)
	h.owners(texts+"/liar", referring("Lie", "x", uid("x"), true))
	h.delete(texts+"/x", foreground)
	h.gone(texts + "/x")
	if h.is(texts+"/liar") == nil {
		t.Error("what an unknown kind owns is gone")
	}
}

// Owners of another UID or namespace are gone; those of kinds that do not last, or that are not
// known here, count as there. There is a bound of them.
func TestWhoCountsAsAnOwner(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.owned("a", nil)
	for n, owner := range []string{referring("Pod", "none", "1", false),
		referring("Service", "none", "1", false), referring("Lie", "none", "1", false)} {
		name := fmt.Sprintf("stays-%d", n)
		h.owned(name, nil)
		h.owners(texts+"/"+name, owner)
	}
	for _, owner := range []string{referring("ConfigMap", "a", "1", false),
		referring("Secret", "a", string(h.is(texts+"/a").UID), false)} {
		h.owned("goes", nil)
		h.owners(texts+"/goes", owner)
		h.gone(texts + "/goes")
	}
	for n := range 3 {
		if name := fmt.Sprintf("stays-%d", n); h.is(texts+"/"+name) == nil {
			t.Errorf("%s is gone", name)
		}
	}
	var many []string
	for n := range 65 {
		many = append(many, referring("ConfigMap", "a", fmt.Sprint(n), false))
	}
	if code, said := h.ask("PATCH", texts+"/a", "application/merge-patch+json",
		`{"metadata":{"ownerReferences":[`+strings.Join(many, ",")+`]}}`); code != 422 ||
		!strings.Contains(said, "64") {
		t.Errorf("65 owners: %d %s", code, said)
	}
}

// A collector does not look again and again at what is going, and at what an object owned of which
// there is another one by now.
func TestACollectorsTurns(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.owned("a", nil)
	h.owned("b", map[string]bool{texts + "/a": true}, "example.com/mine")
	h.delete(texts+"/a", foreground)
	h.until("b is going", func() bool { return h.is(texts+"/b").DeletionTimestamp != nil })
	find := func(of string) *entry { return h.api.world.get(configMaps, "ann", of) }
	turns := func(r *reconciler) (all []string) {
		for r.queue.Len() > 0 {
			d, _ := r.queue.Get()
			all = append(all, d.name.name)
			r.queue.Done(d)
		}
		return all
	}
	r := newReconciler(h.api.road)
	defer r.queue.ShutDown()
	r.writer = h.api.reconcile.writer
	r.follow(&event{what: "ADDED", entry: find("b")})
	turns(r)
	if err := r.ending(t.Context(), find("a")); err != nil {
		t.Fatal(err)
	}
	if again := turns(r); len(again) > 0 {
		t.Errorf("looked at again: %s", again)
	}
	r.follow(&event{what: "DELETED", entry: find("a"), before: find("a")})
	turns(r)
	if err := r.reconcile(t.Context(), ref{configMaps, find("a").name}); err != nil {
		t.Fatal(err)
	}
	if left := turns(r); fmt.Sprint(left) != "[b]" {
		t.Errorf("looked at: %s", left)
	}
}

// What a crash left of deletions is done at the next start, however many objects an owner leaves.
// What a document cannot say any more counts as there.
func TestDeletionsOutliveACrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	kept, err := embedded.Open(path, 64<<20, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	put := func(name, more string) {
		body := fmt.Sprintf(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":%q,`+
			`"namespace":"ann","uid":%q,"creationTimestamp":"2026-01-01T00:00:00Z"%s}}`,
			name, name, more)
		if _, err := kept.Put(t.Context(), store.Doc{Key: storeKey(configMaps, "ann", name),
			Body: []byte(body)}, nil, store.Unbounded); err != nil {
			t.Fatal(err)
		}
	}
	ending := func(finalizer string) string {
		return fmt.Sprintf(`,"deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":[%q]`,
			finalizer)
	}
	of := func(owner string) string {
		return `,"ownerReferences":[` + referring("ConfigMap", owner, owner, true) + `]`
	}
	put("orphans", ending(metav1.FinalizerOrphanDependents))
	for n := range mostReleased + 1 {
		put(fmt.Sprintf("orphan-%d", n), of("orphans"))
	}
	put("waits", ending(metav1.FinalizerDeleteDependents))
	put("awaited", of("waits"))
	put("one", of("two")+ending(metav1.FinalizerDeleteDependents))
	put("two", of("one")+ending(metav1.FinalizerDeleteDependents))
	put("broken", `,"labels":3`)
	put("kept", of("broken"))
	if err := kept.Close(); err != nil {
		t.Fatal(err)
	}
	h, leave := newHouse(t, path, access.NewKey())
	defer leave()
	for _, name := range []string{"orphans", "waits", "awaited", "one", "two"} {
		h.gone(texts + "/" + name)
	}
	for n := range mostReleased + 1 {
		if is := h.is(fmt.Sprintf("%s/orphan-%d", texts, n)); is == nil ||
			len(is.OwnerReferences) > 0 {
			t.Errorf("the orphan %d is %+v", n, is)
		}
	}
	if h.is(texts+"/kept") == nil {
		t.Error("what a document owns that cannot be used is gone")
	}
}

// While an object is about to go, another deletion says anew what is to come of what it owns.
func TestADeletionIsChanged(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.owned("a", nil)
	h.owned("b", map[string]bool{texts + "/a": true}, "example.com/mine")
	h.delete(texts+"/a", foreground)
	h.until("b is going", func() bool { return h.is(texts+"/b").DeletionTimestamp != nil })
	h.delete(texts+"/a", orphan)
	h.gone(texts + "/a")
	if code, said := h.ask("PATCH", texts+"/b", "application/merge-patch+json",
		`{"metadata":{"finalizers":["example.com/mine","example.com/more"]}}`); code != 422 ||
		!strings.Contains(said, "no new finalizers") {
		t.Errorf("%d %s", code, said)
	}
}

// A deletion of many answers with those that it has deleted, and takes no others; and one that
// means another object takes none.
func TestADeletionMeansItsObjects(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	for _, name := range []string{"a", "b", "c"} {
		h.must("POST", texts, fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"of":%q}}}`, name,
			strings.Trim(name, "c")))
	}
	said := h.must("DELETE", texts+"?labelSelector=of", `{"dryRun":["All"]}`)
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal([]byte(h.must("DELETE", texts+"?labelSelector=of!%3D", "")),
		&list); err != nil || len(list.Items) != 2 || list.Kind != "ConfigMapList" {
		t.Errorf("%+v %v after %s", list, err, said)
	}
	c := h.is(texts + "/c")
	if c == nil || h.is(texts+"/a") != nil || h.is(texts+"/b") != nil {
		t.Error("it has deleted others")
	}
	for _, means := range []string{`"uid":"other"`, `"resourceVersion":"1"`} {
		code, said := h.ask("DELETE", texts+"/c", "", `{"preconditions":{`+means+`}}`)
		if code != http.StatusConflict {
			t.Errorf("%s: %d %s", means, code, said)
		}
	}
	for _, bad := range []string{`{"propagationPolicy":"Never"}`,
		`{"propagationPolicy":"Orphan","orphanDependents":false}`} {
		if code, said := h.ask("DELETE", texts+"/c", "", bad); code != 422 {
			t.Errorf("%s: %d %s", bad, code, said)
		}
	}
	h.must("DELETE", texts+"/c", fmt.Sprintf(`{"preconditions":{"uid":%q,"resourceVersion":%q}}`,
		c.UID, c.ResourceVersion))
}

// Many that are deleted by one request count as so many changes of their namespace.
func TestEachOfManyDeletionsCounts(t *testing.T) {
	minute := func() int64 { return time.Now().Unix() / 60 } // of which there are so many
	try := func() (over bool) {
		h, leave := aHouse(t)
		defer leave()
		begun := minute()
		for _, name := range []string{"a", "b", "c", "d"} {
			h.must("POST", core+"configmaps", `{"metadata":{"name":"`+name+`"}}`)
		}
		if err := h.api.cfg.Directory.Add(&access.Subject{Name: "ann",
			Limits:     access.Limits{"changesPerMinute": 6}, // of which four were made
			Namespaces: []access.Namespace{h.key.Owned("ann")}}); err != nil {
			t.Fatal(err)
		}
		code, said := h.ask("DELETE", core+"configmaps", "application/json", "")
		left := strings.Count(h.must("GET", core+"configmaps", ""), `"uid"`)
		if minute() != begun {
			return false
		}
		if code != 429 || !strings.Contains(said, "too many changes") || left != 2 {
			t.Errorf("%d are left after %d %s", left, code, said)
		}
		return true
	}
	for !try() {
	}
}
