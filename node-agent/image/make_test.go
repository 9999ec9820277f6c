package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// fakeBuilder is a builder that makes a runtime when the file "go" is in its directory, which it
// returns with the cache's. The file "begun" there gets a line for each builder that was started.
func fakeBuilder(t *testing.T, script string) (builder []string, at, cache string) {
	t.Helper()
	at, cache = t.TempDir(), t.TempDir()
	made := filepath.Join(at, "made")
	if err := os.Mkdir(made, 0o755); err != nil {
		t.Fatal(err)
	}
	tree, err := rootfs.New(at)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	if err := tree.WriteImage(filepath.Join(made, RootName)); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"made/" + ConfigName: `{"command":["/p"]}`,
		"builder": "#!/bin/sh\ncd '" + at + "'\n" + `
			echo $3 >>begun
			echo "image  $3  0s  unpacking" >&2
			` + script + `
			while [ ! -e go ]; do sleep 0.01; done
			dir="$FASTIOV_CACHE/entries/made-$(echo $3 | tr : _)"
			cp -r made "$dir"
			echo "{\"dir\": \"$dir\", \"fetched\": 7}"`,
	} {
		if err := os.WriteFile(filepath.Join(at, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return []string{filepath.Join(at, "builder"), "build", "--json"}, at, cache
}

func touch(t *testing.T, file string) {
	t.Helper()
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

func openSet(t *testing.T, cache string, builder []string) (*Set, *Cache) {
	t.Helper()
	c := open(t, cache)
	c.Builder = builder
	goes := filepath.Join(filepath.Dir(builder[0]), "go")
	touch(t, goes)
	set, err := c.Set(t.Context(), DebianKernel)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(goes); err != nil {
		t.Fatal(err)
	}
	return set, c
}

func lines(t *testing.T, file string) []string {
	t.Helper()
	content, _ := os.ReadFile(file)
	return strings.Fields(string(content))
}

// TestARuntimeIsBuiltOnceForAll who wait for it, one builder at a time; what it does is seen
// meanwhile, and who comes later starts no builder.
func TestARuntimeIsBuiltOnceForAll(t *testing.T) {
	builder, at, cache := fakeBuilder(t, "")
	set, c := openSet(t, cache, builder)
	var fetched int64
	c.Fetched = func(_ string, n int64) { fetched += n }
	use := func(name string) error {
		r, release, err := set.Use(t.Context(), name, "ns")
		if err == nil && (r.Command[0] != "/p" || release != nil) {
			err = fmt.Errorf("%+v", r)
		}
		return err
	}
	var all sync.WaitGroup
	for n := range 20 {
		all.Go(func() {
			if err := use([]string{"python:3", "nodejs:18"}[n%2]); err != nil {
				t.Error(err)
			}
		})
	}
	doing := func() string {
		said := []string{set.Building("python:3"), set.Building("nodejs:18")}
		return strings.Join(said, ", ")
	}
	const waits = "waits until its builder can start"
	until(t, "one is built and one waits", func() bool {
		return doing() == "builds python:3: unpacking, "+waits ||
			doing() == waits+", builds nodejs:18: unpacking"
	})
	if begun := lines(t, filepath.Join(at, "begun")); len(begun) != 2 { // the first made the guest
		t.Errorf("builders of %q at a time", begun)
	}
	touch(t, filepath.Join(at, "go"))
	all.Wait()
	if err := use("python:3"); err != nil {
		t.Error(err)
	}
	if begun := lines(t, filepath.Join(at, "begun")); len(begun) != 3 {
		t.Errorf("builders of %q", begun)
	}
	if said := doing(); said != ", " || fetched != 14 {
		t.Errorf("at the end it says %q, and %d bytes were fetched", said, fetched)
	}
	if have := fmt.Sprint(set.Have()); have != "[nodejs:18 python:3]" {
		t.Errorf("it has %s", have)
	}
}

// TestABuildOutlivesTheStartThatAskedForIt: the next one finds it done.
func TestABuildOutlivesTheStartThatAskedForIt(t *testing.T) {
	builder, at, cache := fakeBuilder(t, "")
	set, _ := openSet(t, cache, builder)
	ctx, giveUp := context.WithCancelCause(t.Context())
	late := errors.New("too late")
	ended := make(chan error)
	go func() { _, _, err := set.Use(ctx, "python:3", ""); ended <- err }()
	const builds = "builds python:3: unpacking"
	until(t, "it is built", func() bool { return set.Building("python:3") == builds })
	giveUp(late)
	if err := <-ended; err != late {
		t.Errorf("it ended with %v", err)
	}
	touch(t, filepath.Join(at, "go"))
	if _, _, err := set.Use(t.Context(), "python:3", ""); err != nil {
		t.Error(err)
	}
	if begun := lines(t, filepath.Join(at, "begun")); len(begun) != 2 {
		t.Errorf("builders of %q", begun)
	}
}

// TestWhyABuilderFailed: the error has its last line, or how it ended.
func TestWhyABuilderFailed(t *testing.T) {
	for script, want := range map[string]string{
		`echo "fastiov: image python:3: no mirror" >&2; exit 1`: "image python:3: no mirror",
		`exit 3`:                             "image python:3: its builder ended: exit status 3",
		`exit 0`:                             `its builder said ""`,
		`echo '{"dir": "/elsewhere"}'; exit`: "it is not in ",
	} {
		builder, _, cache := fakeBuilder(t, `if [ "$3" != guest ]; then `+script+"\nfi")
		set, _ := openSet(t, cache, builder)
		_, _, err := set.Use(t.Context(), "python:3", "")
		if err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "fastiov:") {
			t.Errorf("%s: %v, want %q", script, err, want)
		}
	}
}

// TestAFailedBuildIsTriedAgainLater: not by each start that comes at once.
func TestAFailedBuildIsTriedAgainLater(t *testing.T) {
	builder, at, cache := fakeBuilder(t, `if [ "$3" != guest ]; then exit 3; fi`)
	set, c := openSet(t, cache, builder)
	now := time.Now()
	c.builds.now = func() time.Time { return now }
	fails := func(want int) {
		t.Helper()
		if _, _, err := set.Use(t.Context(), "python:3", ""); err == nil {
			t.Error("it does not fail")
		}
		begun := lines(t, filepath.Join(at, "begun"))
		if len(begun) != want || set.Building("python:3") != "" {
			t.Errorf("builders of %q; now %q", begun, set.Building("python:3"))
		}
	}
	fails(2) // the first made the guest
	fails(2)
	now = now.Add(passingAge)
	fails(3)
}

// lingers has a builder start a process and half an entry, and wait.
const lingers = `
if [ "$3" != guest ]; then
	mkdir "$FASTIOV_CACHE/tmp/python_3-1"
	setsid sleep 1000 </dev/null >/dev/null 2>&1 &
	echo $$ >>begun
	sleep 1000
fi`

// sleepers counts the processes that lingers has started in the builder's directory.
func sleepers(t *testing.T, at string) (n int) {
	t.Helper()
	processes, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		if cwd, _ := os.Readlink("/proc/" + p.Name() + "/cwd"); cwd == at {
			n++
		}
	}
	return n
}

// TestABuilderEndsWithAllThatItStarted: where the cache is closed, and where its process is killed.
func TestABuilderEndsWithAllThatItStarted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a namespace of processes")
	}
	builder, at, cache := fakeBuilder(t, lingers)
	left := func() []string { return children(filepath.Join(cache, "tmp")) }
	for name, end := range map[string]func() (stop func()){
		"closed": func() func() {
			set, c := openSet(t, cache, builder)
			go func() { _, _, _ = set.Use(t.Context(), "python:3", "") }()
			return c.Close
		},
		"killed": func() func() {
			node := exec.Command("/proc/self/exe")
			node.Env = append(os.Environ(), asNode+"="+cache+" "+builder[0])
			node.Stderr = os.Stderr
			if err := node.Start(); err != nil {
				t.Fatal(err)
			}
			return func() { _ = node.Process.Kill(); _ = node.Wait() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			stop := end()
			until(t, "a builder lingers", func() bool {
				return sleepers(t, at) >= 3 && len(left()) == 1
			})
			stop()
			until(t, "all has ended", func() bool { return sleepers(t, at) == 0 })
			if name == "killed" {
				open(t, cache)
			}
			if left := left(); len(left) > 0 {
				t.Errorf("left in the cache: %v", left)
			}
		})
	}
}

// asNode makes the test binary a node that has python:3 built.
const asNode = "FASTIOV_TEST_AS_NODE"

func beNode() {
	cache, builder, _ := strings.Cut(os.Getenv(asNode), " ")
	c, err := Open(cache, io.Discard)
	if err == nil {
		c.Builder = []string{builder, "build", "--json"}
		_, err = c.Make(context.Background(), "python:3")
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// TestABuilderGivesWayToSandboxes: it is nice, and so is all that it starts.
func TestABuilderGivesWayToSandboxes(t *testing.T) {
	builder, at, cache := fakeBuilder(t,
		`while [ $(nice) -lt 10 ] && [ $((n += 1)) -lt 2000 ]; do sleep 0.01; done; nice >nice`)
	openSet(t, cache, builder)
	prio, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := strconv.Itoa(max(niceOf(prio), builderNice))
	if got := lines(t, filepath.Join(at, "nice")); len(got) != 1 || got[0] != want {
		t.Errorf("its niceness is %q, want %s", got, want)
	}
}
