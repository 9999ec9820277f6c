package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// A stalling registry sends the beginning of each large blob, and the rest when it is let go.
type stallingRegistry struct {
	http.Handler
	let chan struct{}

	mu      sync.Mutex
	stalled int
	resumed int // blobs that were asked for from somewhere on
}

func (r *stallingRegistry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet || !strings.Contains(req.URL.Path, "/blobs/") {
		r.Handler.ServeHTTP(w, req)
		return
	}
	answer := httptest.NewRecorder()
	r.Handler.ServeHTTP(answer, req)
	b := answer.Body.Bytes()
	r.mu.Lock()
	if req.Header.Get("Range") != "" {
		r.resumed++
	}
	r.mu.Unlock()
	for key, values := range answer.Header() {
		w.Header()[key] = values
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(b)))
	w.WriteHeader(answer.Code)
	if len(b) < 10<<10 { // a configuration
		_, _ = w.Write(b)
		return
	}
	_, _ = w.Write(b[:len(b)/2])
	w.(http.Flusher).Flush()
	r.mu.Lock()
	r.stalled++
	r.mu.Unlock()
	select {
	case <-r.let:
		_, _ = w.Write(b[len(b)/2:])
	case <-req.Context().Done():
	}
}

func (r *stallingRegistry) count() (stalled, resumed int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stalled, r.resumed
}

// noisy are layers that do not compress.
func noisy(t *testing.T, layers int) (all []v1.Layer) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 9))
	for n := range layers {
		content := make([]byte, 300<<10)
		for i := range content {
			content[i] = byte(r.Uint32())
		}
		all = append(all, layer(t, file(fmt.Sprint("noise", n), string(content))))
	}
	return all
}

// TestASlowRegistryHoldsUpNoOtherNamespace: while one namespace's layers stall and have all turns,
// another's image comes. When the registry goes on, the layers that gave up their turns go on from
// where they were.
func TestASlowRegistryHoldsUpNoOtherNamespace(t *testing.T) {
	stalling := &stallingRegistry{let: make(chan struct{}),
		Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	server := httptest.NewServer(stalling)
	defer server.Close()
	slow := pushLayers(t, strings.TrimPrefix(server.URL, "http://")+"/a/slow:1",
		func(*v1.ConfigFile) {}, noisy(t, 6)...)
	quick := pushLayers(t, newRegistry(t)+"/b/quick:1", func(*v1.ConfigFile) {}, noisy(t, 4)...)
	quickHost, _, _ := strings.Cut(quick, "/")
	registries, err := oci.ParseRegistries([]string{server.URL, "http://" + quickHost})
	if err != nil {
		t.Fatal(err)
	}
	c := open(t, t.TempDir())
	c.Source.Allow(registries, nil)
	const places = 3
	c.pulls.turns.places = places
	slowly := make(chan error)
	go func() {
		_, err := pullFor(t, c, slow, "a")
		slowly <- err
	}()
	until(t, "all turns are those of the slow registry", func() bool {
		stalled, _ := stalling.count()
		return stalled == places
	})
	if _, err := pullFor(t, c, quick, "a"); err != nil { // for which others may wait
		t.Fatal(err)
	}
	for n := range 3 { // more namespaces than turns
		if _, err := pullFor(t, c, quick, fmt.Sprint("b", n)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-slowly:
		t.Fatalf("the slow pull has ended: %v", err)
	default:
	}
	close(stalling.let)
	if err := <-slowly; err != nil {
		t.Error(err)
	}
	if _, resumed := stalling.count(); resumed == 0 {
		t.Error("no layer went on from where it was")
	}
}

// TestWhoseTurnItIs walks through the decisions.
func TestWhoseTurnItIs(t *testing.T) {
	now := time.Unix(0, 0)
	s := &turns{now: func() time.Time { return now }, begun: map[string]int{}}
	add := func(namespace string, taken bool) *turn {
		u := &turn{turns: s, whose: namespace, taken: taken}
		s.all = append(s.all, u)
		return u
	}
	a, a2, a3 := add("a", true), add("a", true), add("a", false)
	if s.following() != a3 {
		t.Error("the only one that waits is not next")
	}
	b := add("b", false)
	if s.following() != b {
		t.Error("who has nothing is not before who has much")
	}
	large := add("b", false)
	if large.size = 1; s.following() != large {
		t.Error("a small layer is before a large one")
	}
	if b.begun = true; s.following() != b {
		t.Error("a new layer is before one that has begun")
	}
	s.begun["b"] = maxBegun
	if b.begun = false; s.following() != a3 {
		t.Error("a namespace begins more layers than it may")
	}
	clear(s.begun)
	s.begun["others"], s.begun["a"] = maxProcesses-1, 1
	if s.following() != large || s.mayBegin("a") {
		t.Error("there are as many processes as there may be, and another begins")
	}
	clear(s.begun)
	s.all = slices.DeleteFunc(s.all, func(o *turn) bool { return o == large })
	a.Waits()
	a2.Waits()
	now = now.Add(turnWindow)
	a2.Came(slowTurn)
	if yields(a3, a, s.counts()) {
		t.Error("a namespace gets its own turn")
	}
	if got := s.measured(b); got != a {
		t.Errorf("%p gives its turn, want %p", got, a)
	}
	a.Came(3 * slowTurn)
	a2.Came(2 * slowTurn)
	if s.measured(b) != a2 {
		t.Error("of two that are quick none gives its turn to who has nothing")
	}
	a.Came(2 * slowTurn)
	a2.Again(slowTurn)
	if s.measured(b) != a {
		t.Error("a turn is over before anything new came")
	}
	a.Came(2 * slowTurn)
	a2.Came(slowTurn)
	if s.measured(b) != a2 {
		t.Error("a turn that brought something new is kept for what came before that")
	}
	a2.taken = false
	a.Came(3 * slowTurn)
	if s.measured(b) != nil {
		t.Error("the only turn of a namespace, which is quick, is taken")
	}
	a2.taken = true
	a.Waits()
	now = now.Add(turnWindow)
	a.Came(slowTurn - 1)
	b.taken = true
	c := add("b", false)
	if s.measured(c) != nil {
		t.Error("one of two is taken from who has no more than the other")
	}
	now = now.Add(turnWindow)
	b.taken = false
	if s.measured(b) != nil {
		t.Error("a layer that waits for no registry loses its turn")
	}
}

// TestPullsStandAsideForStarts: they ask for no block while a start has layers come, unless a start
// waits for them.
func TestPullsStandAsideForStarts(t *testing.T) {
	r, host := newCountingRegistry(t)
	close(r.gate)
	ref := push(t, host, func(*v1.ConfigFile) {})
	dir := t.TempDir()
	starts, other := openFor(t, dir, ref), openFor(t, dir, ref)
	other.Aside = true
	_, done, err := starts.beside(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*asideFor)
	defer cancel()
	if err := other.standAside(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beside a start: %v", err)
	}
	lock, err := other.lock(t.Context(), "layer"+building, unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan error)
	go func() {
		lock, err := starts.lock(t.Context(), "layer"+building, unix.LOCK_EX)
		if err == nil {
			lock.Close()
		}
		waits <- err
	}()
	if err := other.standAside(t.Context()); err != nil {
		t.Errorf("where a start waits for it: %v", err)
	}
	lock.Close()
	if err := <-waits; err != nil {
		t.Error(err)
	}
	done()
	r.mu.Lock()
	clear(r.asked)
	r.mu.Unlock()
	if _, err := pullFor(t, other, ref, ""); err != nil || r.count("blobs") != 3 {
		t.Errorf("without starts: %v, %d blobs", err, r.count("blobs"))
	}
	if left := children(filepath.Join(dir, "locks")); slices.Contains(left, startsKey) {
		t.Errorf("%q are left", left)
	}
}

// TestAStartKnowsItsPull: a call that waits for a pull is told what it did, and one that finds the
// image here is told nothing.
func TestAStartKnowsItsPull(t *testing.T) {
	host := newRegistry(t)
	layers := noisy(t, 3)
	change := func(*v1.ConfigFile) {}
	one := pushLayers(t, host+"/team/one:1", change, layers[:2]...)
	two := pushLayers(t, host+"/team/two:1", change, layers...)
	c := openFor(t, t.TempDir(), one)
	for _, step := range []struct {
		ref             string
		layers, fetched int
	}{{one, 2, 2}, {one, 0, 0}, {two, 3, 1}, {two, 0, 0}} {
		r, err := pullFor(t, c, step.ref, "a")
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case step.layers == 0:
			if r.Pull != nil {
				t.Errorf("%s was here: %v", step.ref, r.Pull)
			}
		case r.Pull == nil || r.Pull.Layers != step.layers || r.Pull.Fetched != step.fetched ||
			r.Pull.Received < int64(step.fetched)*300<<10:
			t.Errorf("%s: %v; want %+v", step.ref, r.Pull, step)
		}
	}
}
