package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// A counting registry holds back what it is asked for until it is let go.
type countingRegistry struct {
	http.Handler
	asked map[string]int // by kind: manifests or blobs
	mu    sync.Mutex
	gate  chan struct{}
	busy  atomic.Int32
}

func (r *countingRegistry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if parts := strings.Split(req.URL.Path, "/"); req.Method == http.MethodGet && len(parts) > 4 {
		r.mu.Lock()
		r.asked[parts[len(parts)-2]]++
		r.mu.Unlock()
		r.busy.Add(1)
		defer r.busy.Add(-1)
		select {
		case <-r.gate:
		case <-req.Context().Done():
			return
		}
	}
	r.Handler.ServeHTTP(w, req)
}

func (r *countingRegistry) count(kind string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[kind]
}

func newCountingRegistry(t *testing.T) (*countingRegistry, string) {
	t.Helper()
	r := &countingRegistry{
		Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0))),
		asked:   map[string]int{}, gate: make(chan struct{}),
	}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return r, strings.TrimPrefix(server.URL, "http://")
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func (s *pulls) waiting(key asked) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.under[key]; p != nil {
		return p.waiting
	}
	return 0
}

func TestTwoHundredCallsOfOneImageArePulledOnce(t *testing.T) {
	r, host := newCountingRegistry(t)
	ref := push(t, host, func(*v1.ConfigFile) {})
	clear(r.asked)
	c := openFor(t, t.TempDir(), ref)
	first, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, _, err := c.Pull(first, ref, "a")
		left <- err
	}()
	until(t, "the first call pulls", func() bool { return r.busy.Load() == 1 })
	var calls sync.WaitGroup
	for range 200 {
		calls.Go(func() {
			_, release, err := c.Pull(t.Context(), ref, "a")
			if err != nil {
				t.Error(err)
				return
			}
			release()
		})
	}
	until(t, "all wait", func() bool { return c.pulls.waiting(asked{"a", ref}) == 201 })
	leave() // whoever began a pull may go, and the others still get it
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the first call: %v", err)
	}
	close(r.gate)
	calls.Wait()
	if m, b := r.count("manifests"), r.count("blobs"); m != 1 || b != 3 {
		t.Errorf("%d manifests and %d blobs were asked for; want 1 and 3", m, b)
	}
}

// TestFiftyPullsShareLayers: of fifty images at once, which have three layers in common, each layer
// is fetched once and decompressed once.
func TestFiftyPullsShareLayers(t *testing.T) {
	const images, shared = 50, 3
	r, host := newCountingRegistry(t)
	close(r.gate)
	var layers []v1.Layer
	var whole int64 // bytes of all archives
	archiveOf := func(content string) v1.Layer {
		l := layer(t, file("app/run", content))
		archive, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		defer archive.Close()
		n, err := io.Copy(io.Discard, archive)
		if whole += n; err != nil {
			t.Fatal(err)
		}
		return l
	}
	for n := range shared {
		layers = append(layers, archiveOf(strings.Repeat("shared", 100_000*(n+1))))
	}
	var refs []string
	for n := range images {
		own := append(layers[:shared:shared], archiveOf(fmt.Sprint("its own ", n)))
		refs = append(refs, pushLayers(t, fmt.Sprintf("%s/team/image%d:1", host, n),
			func(*v1.ConfigFile) {}, own...))
	}
	clear(r.asked)
	c := openFor(t, t.TempDir(), refs[0])
	var decompressed atomic.Int64
	c.Pulled = func(report Report) { decompressed.Add(report.Archives) }
	var pulls sync.WaitGroup
	for n, ref := range refs {
		pulls.Go(func() {
			_, release, err := c.Pull(t.Context(), ref, fmt.Sprint(n))
			if err != nil {
				t.Error(err)
				return
			}
			release()
		})
	}
	pulls.Wait()
	const configs = images
	if got := r.count("blobs"); got != shared+images+configs {
		t.Errorf("%d blobs were asked for; there are %d", got, shared+images+configs)
	}
	if got := decompressed.Load(); got != whole {
		t.Errorf("%d bytes were decompressed; there are %d", got, whole)
	}
}

func TestAPullThatNobodyWaitsForEnds(t *testing.T) {
	r, host := newCountingRegistry(t)
	ref := host + "/team/action:1"
	c := openFor(t, t.TempDir(), ref)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _, _ = c.Pull(ctx, ref, "a")
	}()
	until(t, "it pulls", func() bool { return r.busy.Load() == 1 })
	cancel()
	<-done
	until(t, "the registry is asked no more", func() bool { return r.busy.Load() == 0 })
}

func TestOneTenantCannotTakeAllPulls(t *testing.T) {
	slow, host := newCountingRegistry(t)
	_, other := newCountingRegistry(t)
	quick := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer quick.Close()
	ref := push(t, strings.TrimPrefix(quick.URL, "http://"), func(*v1.ConfigFile) {})
	c := openFor(t, t.TempDir(), ref)
	registries, err := oci.ParseRegistries([]string{
		"http://" + host, "http://" + other, quick.URL,
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Source.Allow(registries, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	for n := range 200 {
		calls.Go(func() { _, _, _ = c.Pull(ctx, fmt.Sprintf("%s/tarpit/%d:1", host, n), "a") })
	}
	until(t, "the tarpit has its share", func() bool { return slow.busy.Load() == namespacePulls })
	_, release, err := c.Pull(t.Context(), ref, "b")
	if err != nil {
		t.Fatalf("another tenant's image meanwhile: %v", err)
	}
	release()
	if n := slow.count("manifests"); n != namespacePulls {
		t.Errorf("%d pulls of one tenant at a time, want %d", n, namespacePulls)
	}
	cancel()
	calls.Wait()
}

func TestAFailureIsRememberedForAWhile(t *testing.T) {
	r, host := newCountingRegistry(t)
	close(r.gate)
	ref := host + "/team/absent:1"
	c := openFor(t, t.TempDir(), ref)
	now := time.Now()
	c.pulls.now = func() time.Time { return now }
	for range 10 {
		_, _, err := c.Pull(t.Context(), ref, "a")
		var refused *oci.Refusal
		if !errors.As(err, &refused) || refused.Reason != oci.NotFound {
			t.Fatalf("got %v, want that it is not found", err)
		}
	}
	if got := r.count("manifests"); got != 1 {
		t.Errorf("asked %d times, want 1", got)
	}
	now = now.Add(refusedAge)
	_, _, _ = c.Pull(t.Context(), ref, "a")
	if got := r.count("manifests"); got != 2 {
		t.Errorf("after %s asked %d times, want 2", refusedAge, got)
	}
}

func TestATagIsLookedUpAgain(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	host := strings.TrimPrefix(server.URL, "http://")
	ref := push(t, host, func(*v1.ConfigFile) {})
	c := openFor(t, t.TempDir(), ref)
	now := time.Now()
	c.pulls.now = func() time.Time { return now }
	command := func() string {
		r, release, err := c.Pull(t.Context(), ref, "")
		if err != nil {
			t.Fatal(err)
		}
		defer release()
		return strings.Join(r.Command, " ")
	}
	before := command()
	push(t, host, func(f *v1.ConfigFile) { f.Config.Cmd = []string{"moved"} })
	if got := command(); got != before {
		t.Errorf("at once: %q, want %q", got, before)
	}
	now = now.Add(tagAge)
	if got := command(); got != "/app/run moved" {
		t.Errorf("after %s: %q", tagAge, got)
	}
	server.Close()
	now = now.Add(tagAge)
	if got := command(); got != "/app/run moved" {
		t.Errorf("with the registry away: %q", got)
	}
}

// TestTheCacheKeepsItsBound: many images through a small cache, whose user stays alive.
func TestTheCacheKeepsItsBound(t *testing.T) {
	host := newRegistry(t)
	dir := t.TempDir()
	c := openFor(t, dir, host)
	c.limit = 50 << 10
	fds := func() (n int) {
		c.settling.all.Wait()
		for _, fd := range children("/proc/self/fd") {
			// Connections of the test's registry idle, and go when they like.
			if to, _ := os.Readlink("/proc/self/fd/" + fd); !strings.HasPrefix(to, "socket:") {
				n++
			}
		}
		return n
	}
	var most, files int
	kept := func() {}
	for n := range 12 {
		ref := pushAs(t, fmt.Sprintf("%s/team/many:%d", host, n), func(f *v1.ConfigFile) {
			f.Config.Env = append(f.Config.Env, fmt.Sprintf("N=%d", n))
		})
		r, release, err := c.Pull(t.Context(), ref, "")
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 { // a sandbox that goes on
			kept = release
			defer func() {
				if _, err := os.Stat(r.Root); err != nil {
					t.Errorf("an image in use was evicted: %v", err)
				}
				kept()
			}()
			continue
		}
		release()
		release() // a second time does nothing
		most = max(most, int(size(filepath.Join(dir, "entries"))))
		if n == 3 {
			files = fds()
		}
	}
	one := size(c.entry(children(filepath.Join(dir, "entries"))[0]))
	t.Logf("an image has %d bytes; at most %d bytes were kept", one, most)
	if one*12 < c.limit || int64(most) > c.limit+one {
		t.Errorf("at most %d bytes in the cache, its bound is %d", most, c.limit)
	}
	if now := fds(); now > files+2 {
		t.Errorf("%d open files after 12 images, %d after 3", now, files)
	}
}

func TestHoldKeepsWhatAFormerProcessUsed(t *testing.T) {
	host := newRegistry(t)
	ref := push(t, host, func(*v1.ConfigFile) {})
	dir := t.TempDir()
	former := openFor(t, dir, ref)
	r, _, err := former.Pull(t.Context(), ref, "")
	if err != nil {
		t.Fatal(err)
	}
	former.Close()
	c := openFor(t, dir, ref)
	release, err := c.Hold(t.Context(), r.Root)
	if err != nil || release == nil {
		t.Fatalf("not held: %v", err)
	}
	c.evict(0)
	if _, err := os.Stat(r.Root); err != nil {
		t.Errorf("evicted while held: %v", err)
	}
	release()
	c.evict(0)
	if _, err := os.Stat(r.Root); err == nil {
		t.Error("still there after it was released")
	}
	if release, err := c.Hold(t.Context(), "/elsewhere/root.erofs"); release != nil || err != nil {
		t.Errorf("what is not in the cache was held: %v", err)
	}
}

func TestBuildsUnderWayTakeRoom(t *testing.T) {
	c := open(t, t.TempDir())
	const most = 1 << 62
	c.building = most
	if _, err := c.room(1); err == nil {
		t.Error("there is room beside a build that takes all")
	}
	c.building = 0
	give, err := c.room(1)
	if err != nil || c.building != 1 {
		t.Fatalf("%d taken, %v", c.building, err)
	}
	if give(); c.building != 0 {
		t.Errorf("%d left over", c.building)
	}
}

// TestNewOutcomesAreRemembered: 4096 names of one image must not end all remembering.
func TestNewOutcomesAreRemembered(t *testing.T) {
	r, host := newCountingRegistry(t)
	close(r.gate)
	ref := push(t, host, func(*v1.ConfigFile) {})
	clear(r.asked)
	c := openFor(t, t.TempDir(), ref)
	long := time.Now().Add(-time.Hour)
	for n := range maxOutcomes {
		c.pulls.now = func() time.Time { return long.Add(time.Duration(n)) }
		c.pulls.remember(asked{"a", fmt.Sprint(n)}, outcome{})
	}
	c.pulls.now = time.Now
	for range 3 {
		_, release, err := c.Pull(t.Context(), ref, "b")
		if err != nil {
			t.Fatal(err)
		}
		release()
	}
	if n := r.count("manifests"); n != 1 {
		t.Errorf("the registry was asked %d times, want 1", n)
	}
	if _, known := c.pulls.known(asked{"a", "0"}); known || len(c.pulls.outcomes) != maxOutcomes {
		t.Errorf("%d outcomes are remembered, the oldest among them: %t", len(c.pulls.outcomes),
			known)
	}
}

func TestAnImageHasOneNameInFull(t *testing.T) {
	r, host := newCountingRegistry(t)
	close(r.gate)
	ref := push(t, host, func(*v1.ConfigFile) {})
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(parsed)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	clear(r.asked)
	c := openFor(t, t.TempDir(), ref)
	for n := range 5 {
		ref := fmt.Sprintf("%s/team/action:%d@%s", host, n, digest)
		_, release, err := c.Pull(t.Context(), ref, "a")
		if err != nil {
			t.Fatal(err)
		}
		release()
	}
	if m, known := r.count("manifests"), len(c.pulls.outcomes); m != 1 || known != 1 {
		t.Errorf("%d manifests were asked for and %d outcomes are known, want 1 of each", m, known)
	}
	entries := slices.DeleteFunc(c.entries(), func(e entry) bool {
		return strings.HasPrefix(e.key, layerName+"-")
	})
	if len(entries) != 1 {
		t.Errorf("%d entries of one image", len(entries))
	}
	want := fmt.Sprintf("%s/team/action:0@%s", host, digest)
	if got := c.pulls.pulled(); !slices.Equal(got, []string{want}) {
		t.Errorf("the cache has %v, want %s", got, want)
	}
	absent := host + "/team/absent"
	if _, _, err := c.Pull(t.Context(), absent, "a"); err == nil ||
		!strings.Contains(err.Error(), absent+" could not") {
		t.Errorf("a refusal has not the name that was given: %v", err)
	}
}
