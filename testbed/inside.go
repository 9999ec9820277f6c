package testbed

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/build"
	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// Needs lists what a test needs of the host it runs in. Any host satisfies the zero value.
type Needs struct {
	NICs      int // igb cards with 7 VFs each
	NVMeVFs   int
	MemoryMiB int
	CPUs      int
	Edu       bool
	NoSnoop   bool // an IOMMU that cannot make accesses snoop the caches; for a named Kernel only
	// skipped unless FASTIOV_TEST_KERNEL is set, because PatchedKernel may have to be built first;
	// FASTIOV_TEST_KERNEL=debug or =kcsan boots that variant of it
	Kernel string
	Append string            // to that kernel's command line
	Files  map[string]string // name below /share → file of this machine that is copied there
	// runtimes whose images are built and copied to ImagesDir, with the guest's kernel and initrd
	Images  []string
	Env     []string      // environment variables of this process that the test gets there too
	Outside func(h *Host) // called here after the body has passed there
}

// ImagesDir is the directory where a test finds the images that it needs.
const ImagesDir = "/share/images"

const (
	insideEnv = "FASTIOV_TEST_INSIDE"
	wantEnv   = "FASTIOV_TEST_TESTBED"
	kernelEnv = "FASTIOV_TEST_KERNEL"
	// margin is the part of a test's time that is reserved for reporting how it ended.
	margin = 10 * time.Second
	// standTime bounds what a moment's sleep takes in a host, however busy it is.
	standTime = 2 * time.Minute
)

// A test is the part of *testing.T that Inside uses: the product links this package, but not
// testing.
type test interface {
	Helper()
	Name() string
	Context() context.Context
	Deadline() (time.Time, bool)
	Skip(...any)
	Skipf(string, ...any)
	Fatal(...any)
	Fatalf(string, ...any)
}

// Inside runs body in a booted host. The test that calls it runs twice. Here, Inside boots the
// package's host, copies the test binary in and starts the same test there. There, Inside just
// calls body. What the test prints there is printed here, and its result is this test's result.
// Without FASTIOV_TEST_TESTBED=1 the test is skipped: a plain go test boots nothing.
//
// A package that uses Inside has `func TestMain(m *testing.M) { testbed.Main(m) }`. The test binary
// must be static (CGO_ENABLED=0). A test calls Inside once; each of its subtests may call it too.
func Inside[T test](t T, needs Needs, body func(t T)) {
	t.Helper()
	if Within() {
		body(t)
		return
	}
	if os.Getenv(wantEnv) == "" {
		t.Skipf("needs a testbed: set %s=1 to boot one", wantEnv)
	}
	if needs.Kernel != "" {
		switch kernel := os.Getenv(kernelEnv); kernel {
		case "":
			t.Skipf("needs the patched kernel: set %s=1 to boot it", kernelEnv)
		case DebugKernel, KCSANKernel:
			if needs.Kernel == PatchedKernel {
				needs.Kernel = kernel
			}
		}
	}
	ctx := t.Context()
	if end, ok := t.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, end.Add(-margin),
			errors.New("the test's time is up"))
		defer cancel()
	}
	verbose := flag.Lookup("test.v").Value.String() != "false"
	h, verdict, err := once(ctx, t.Name(), needs, verbose)
	if errors.Is(err, errStands) && (needs.Kernel == "" || needs.Kernel == DebianKernel) {
		fmt.Fprintf(os.Stderr, "testbed: %v: another host is booted for %s\n", err, t.Name())
		shared.end(true)
		h, verdict, err = once(ctx, t.Name(), needs, verbose)
	}
	switch {
	case err != nil:
		t.Fatal(err)
	case verdict == skipped:
		t.Skip("skipped in the testbed, see above")
	case verdict == failed:
		t.Fatal("failed in the testbed, see above")
	}
	if needs.Outside != nil {
		needs.Outside(h)
	}
}

// once runs a test in a host that has what the test needs.
func once(ctx context.Context, name string, needs Needs, verbose bool) (*Host, verdict, error) {
	h, err := shared.host(ctx, needs)
	if err != nil {
		return nil, failed, err
	}
	for name, src := range needs.Files {
		if err := h.Put(ctx, name, src); err != nil {
			return nil, failed, err
		}
	}
	if len(needs.Images) > 0 {
		if err := h.putImages(ctx, needs.Images); err != nil {
			return nil, failed, err
		}
	}
	if needs.Kernel != "" && needs.Kernel != DebianKernel {
		if err := h.putSelftests(ctx); err != nil {
			return nil, failed, err
		}
	}
	stood := h.watch(standTime)
	verdict, err := h.test(ctx, name, needs.Env, verbose, os.Stdout)
	if stands := stood(); stands != nil {
		err = stands
	} else if err != nil {
		if said, ended := h.lastWords(); ended {
			err = fmt.Errorf("%w; QEMU has ended: %s", err, said)
		}
	}
	if err != nil {
		err = fmt.Errorf("in the testbed: %w", err)
	}
	return h, verdict, err
}

// Within reports whether this process is a test in the host that Inside has booted for it.
func Within() bool { return os.Getenv(insideEnv) != "" }

// Main runs the package's tests and then ends the host that they shared, if one was booted.
// TestMain calls it.
func Main(m interface{ Run() int }) {
	code := m.Run()
	shared.end(code != 0)
	os.Exit(code)
}

// A verdict is the result of a test.
type verdict int

const (
	passed verdict = iota
	skipped
	failed
)

func (h *Host) putImages(ctx context.Context, runtimes []string) error {
	cache, err := build.Open("", os.Stderr)
	if err != nil {
		return err
	}
	defer cache.Close()
	var told []string // the tests' own registries, on the loopback
	for _, name := range runtimes {
		if host, _, _ := strings.Cut(name, "/"); strings.HasPrefix(host, "127.0.0.1:") {
			told = append(told, "http://"+host)
		}
	}
	registries, err := oci.ParseRegistries(told)
	if err != nil {
		return err
	}
	cache.Source.Allow(registries, nil)
	return h.Fill(ctx, filepath.Base(ImagesDir), func(dir string) error {
		return cache.Export(ctx, dir, image.DebianKernel, runtimes...)
	})
}

// Guest returns what a microVM boots from, with that kernel, for a test that boots one by itself.
// It is in use until released.
func Guest(ctx context.Context, kernel string) (boot image.Boot, release func(), err error) {
	cache, err := build.Open("", os.Stderr)
	if err != nil {
		return boot, nil, err
	}
	if boot, err = cache.GuestWith(ctx, kernel); err != nil {
		cache.Close()
	}
	return boot, cache.Close, err
}

// QEMU returns the QEMU that boots testbeds here. It stays in the cache until it is released.
func QEMU(ctx context.Context) (q hypervisor.QEMU, release func(), err error) {
	cache, err := build.Open("", os.Stderr)
	if err != nil {
		return q, nil, err
	}
	if q, err = hypervisor.Find(ctx, cache.QEMU); err != nil {
		cache.Close()
	}
	return q, cache.Close, err
}

// SelftestsDir is the directory where a test that needs the patched kernel finds its selftests.
const SelftestsDir = "/share/selftests"

func (h *Host) putSelftests(ctx context.Context) error {
	cache, err := build.Open("", os.Stderr)
	if err != nil {
		return err
	}
	defer cache.Close()
	patched, err := cache.Patched(ctx, variant(h.Config().Kernel))
	if err != nil {
		return err
	}
	return h.Fill(ctx, filepath.Base(SelftestsDir),
		func(dir string) error { return os.CopyFS(dir, os.DirFS(patched.Selftests)) })
}

// test runs one test of this binary in the host and relays its output.
func (h *Host) test(
	ctx context.Context, name string, env []string, verbose bool, w io.Writer,
) (verdict, error) {
	binary, err := h.putSelf(ctx)
	if err != nil {
		return failed, err
	}
	variables := insideEnv + "=1"
	for _, name := range env {
		if value, set := os.LookupEnv(name); set {
			variables += " " + name + "=" + Quote(value)
		}
	}
	command := fmt.Sprintf(
		"mkdir -p /tmp/test && cd /tmp/test && %s exec %s -test.v -test.count=1 -test.run %s",
		variables, binary, Quote(only(name)+below(name, flag.Lookup("test.run").Value.String())))
	out := &relay{w: w, test: name, all: verbose}
	code, err := h.Run(ctx, command, nil, out, out)
	if err != nil {
		return failed, err
	}
	out.flush()
	if code != 0 {
		return failed, nil
	}
	if !out.ran {
		return failed, fmt.Errorf("the test binary knows no test %s", name)
	}
	return out.verdict, nil
}

// only returns a pattern for go test's -run that matches only the named test.
func only(name string) string {
	var pattern []string
	for _, part := range strings.Split(name, "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	return strings.Join(pattern, "/")
}

// below returns the part of a pattern that chooses among the named test's own subtests: they run in
// the host alone.
func below(name, pattern string) string {
	parts, depth := strings.Split(pattern, "/"), strings.Count(name, "/")+1
	if len(parts) <= depth {
		return ""
	}
	return "/" + strings.Join(parts[depth:], "/")
}

// Quote returns one line that a shell reads as these words.
func Quote(words ...string) string {
	var quoted []string
	for _, w := range words {
		quoted = append(quoted, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
	}
	return strings.Join(quoted, " ")
}

// putSelf copies this test binary to the host and returns its path there.
func (h *Host) putSelf(ctx context.Context) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	name := filepath.Base(self)
	if h.tests {
		return "/share/" + name, nil
	}
	f, err := elf.Open(self)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return "", errors.New(
				"the test binary needs shared libraries that the host has not: run go test with CGO_ENABLED=0")
		}
	}
	if err := h.PutLauncher(ctx); err != nil {
		return "", err
	}
	h.tests = true
	return "/share/" + name, h.Put(ctx, name, self)
}

// A relay passes on a test's output line by line and reads the test's verdict from it.
type relay struct {
	w       io.Writer
	test    string
	all     bool // also the lines that go test shows only with -v
	rest    []byte
	ran     bool
	verdict verdict
}

func (r *relay) Write(b []byte) (int, error) {
	r.rest = append(r.rest, b...)
	for {
		line, rest, found := bytes.Cut(r.rest, []byte("\n"))
		if !found {
			return len(b), nil
		}
		r.line(string(line))
		r.rest = rest
	}
}

func (r *relay) flush() {
	if len(r.rest) > 0 {
		r.line(string(r.rest))
		r.rest = nil
	}
}

// line reads and passes on one line. It leaves the framing lines of the test that also runs here to
// go test here.
func (r *relay) line(line string) {
	trimmed := strings.TrimLeft(line, " ")
	for prefix, v := range map[string]verdict{
		"--- PASS: ": passed, "--- SKIP: ": skipped, "--- FAIL: ": failed,
	} {
		if strings.HasPrefix(trimmed, prefix+r.test+" (") {
			r.ran, r.verdict = true, v
		}
	}
	frame := line == "PASS" || line == "FAIL" || strings.HasPrefix(trimmed, "=== ") && !r.all
	if !frame {
		fmt.Fprintf(r.w, "    testbed: %s\n", line)
	}
}
