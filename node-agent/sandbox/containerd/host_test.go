package containerd

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
	"github.com/fastiov/fastiov/node-agent/netpath/bridge"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk/echo"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
)

const (
	inside  = "FASTIOV_TEST_CONTAINERD_INSIDE"
	program = "container-program"
	second  = "second-program" // with how long it lasts
)

// All tests run in a network namespace of their own, with a containerd of their own. The program in
// their containers is this test's binary.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == program:
		fmt.Fprintln(os.Stderr, serve())
		os.Exit(1)
	case len(os.Args) > 1 && os.Args[1] == second:
		lasts, _ := time.ParseDuration(os.Args[2])
		time.Sleep(lasts)
		os.Exit(3)
	case os.Geteuid() != 0 || os.Getenv(inside) != "":
		code := m.Run()
		if imageDir != "" {
			_ = os.RemoveAll(imageDir)
		}
		os.Exit(code)
	}
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Env = append(os.Environ(), inside+"=1")
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET,
		Pdeathsig: syscall.SIGKILL}
	if err := again.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve is a runtime of OpenWhisk's, and a program of plain HTTP that tells about itself.
func serve() error {
	runtime := echo.Handler(func(status, _ int) {
		fmt.Printf("answered %d\n%s\n", status, openwhisk.Sentinel)
		fmt.Fprintln(os.Stderr, openwhisk.Sentinel)
	})
	mux := http.NewServeMux()
	mux.Handle("POST /", runtime)
	mux.HandleFunc("GET /self", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(tellSelf())
	})
	mux.HandleFunc("GET /hoard", func(http.ResponseWriter, *http.Request) {
		for all := [][]byte{}; ; {
			all = append(all, bytes.Repeat([]byte{1}, 1<<20))
		}
	})
	mux.HandleFunc("GET /end", func(http.ResponseWriter, *http.Request) { ending() })
	if os.Getenv("END") != "" {
		ending()
	}
	if os.Getenv("FIRST") != "" {
		_ = os.WriteFile("/room/found", []byte("yes"), 0o644)
	}
	if os.Getenv("LATE") != "" {
		time.Sleep(3 * time.Second)
	}
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	return http.ListenAndServe(":"+port, mux)
}

func ending() {
	fmt.Println("the end comes")
	os.Exit(7)
}

// A self holds what a program in a container finds out about its place.
type self struct {
	UID, GID                 int
	Dir                      string
	Env                      map[string]string
	Status                   map[string]string
	Processes                int
	Raw, Mount, Device, Sys  string // errors of what it tries
	Core, Hosts, Resolv, Tmp string
	Given, Alone, Changed    string // of the files that it is given
	Links                    []string
	Work                     string // of a folder that it may share
}

func tellSelf() (s self) {
	said := func(err error) string {
		if err == nil {
			return "allowed"
		}
		return err.Error()
	}
	s.UID, s.GID = os.Getuid(), os.Getgid()
	s.Env, s.Status = map[string]string{}, map[string]string{}
	s.Dir, _ = os.Getwd()
	for _, v := range os.Environ() {
		name, value, _ := strings.Cut(v, "=")
		s.Env[name] = value
	}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		s.Status[name] = strings.TrimSpace(value)
	}
	entries, _ := filepath.Glob("/proc/[0-9]*")
	s.Processes = len(entries)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err == nil {
		unix.Close(fd)
	}
	s.Raw = said(err)
	s.Mount = said(unix.Mount("none", "/tmp", "tmpfs", 0, ""))
	s.Device = said(unix.Mknod("/tmp/disk", unix.S_IFBLK|0o600, 8<<8))
	s.Sys = said(os.WriteFile("/proc/sys/kernel/hostname", []byte("x"), 0))
	core, err := os.ReadFile("/proc/kcore")
	s.Core = fmt.Sprint(len(core), " ", said(err))
	hosts, _ := os.ReadFile("/etc/hosts")
	resolv, _ := os.ReadFile("/etc/resolv.conf")
	s.Hosts, s.Resolv = string(hosts), string(resolv)
	given, err := os.ReadFile("/etc/app/deep/name")
	s.Given = fmt.Sprint(string(given), " ", said(err))
	alone, err := os.ReadFile("/etc/app.conf")
	s.Alone = fmt.Sprint(string(alone), " ", said(err))
	s.Changed = said(os.WriteFile("/etc/app/other", []byte("x"), 0o600))
	found, _ := os.ReadFile("/room/found")
	s.Work = string(found)
	s.Tmp = said(os.WriteFile("/tmp/written", []byte("x"), 0o600))
	links, _ := net.Interfaces()
	for _, link := range links {
		s.Links = append(s.Links, link.Name)
	}
	return s
}

var imageDir string // what image makes, it makes there

// image makes an image of this test's program, with the libraries that it needs, once.
var image = sync.OnceValues(func() (path string, err error) {
	dir, err := os.MkdirTemp("", "fastiov-")
	if err != nil {
		return "", err
	}
	imageDir = dir
	defer os.RemoveAll(filepath.Join(dir, "spool"))
	if err := os.Mkdir(filepath.Join(dir, "spool"), 0o700); err != nil {
		return "", err
	}
	tree, err := rootfs.New(filepath.Join(dir, "spool"))
	if err != nil {
		return "", err
	}
	defer tree.Close()
	put := func(from, to string) error {
		content, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		return tree.Write(to, 0o755, content)
	}
	if err := put("/proc/self/exe", "program"); err != nil {
		return "", err
	}
	binary, err := elf.Open("/proc/self/exe")
	if err != nil {
		return "", err
	}
	defer binary.Close()
	libraries, err := binary.ImportedLibraries()
	if err != nil {
		return "", err
	}
	if len(libraries) > 0 {
		const loader = "/lib64/ld-linux-x86-64.so.2"
		if err := put(loader, loader[1:]); err != nil {
			return "", err
		}
	}
	for _, name := range libraries {
		if err := put("/lib/x86_64-linux-gnu/"+name, "lib/x86_64-linux-gnu/"+name); err != nil {
			return "", err
		}
	}
	for _, name := range []string{"etc", "tmp", "work", "proc", "sys", "dev", "run"} {
		if err := tree.Mkdir(name, 0o777); err != nil {
			return "", err
		}
	}
	path = filepath.Join(dir, "root.erofs")
	return path, tree.WriteImage(path)
})

// needs skips a test that cannot run here.
func needs(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make containers")
	}
	needed(t, "containerd", "containerd-shim-runc-v2", "runc")
}

func needed(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("FASTIOV_CI") != "" {
				t.Fatal(err)
			}
			t.Skipf("%s is missing: apt-get install containerd runc crun", tool)
		}
	}
}

// A host is a machine with a driver and a bridge.
type host struct {
	*testing.T
	bridge *bridge.Bridge
	config Config
	root   string

	handler string // of the sandboxes that start from now on
}

// Tests with the express path begin it when the host has its bridge.
var connected = func(*testing.T) {}

func newHost(t *testing.T) *host {
	t.Helper()
	needs(t)
	root, err := image()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	b, err := bridge.Open(bridge.Config{Name: "fastiov0", Dir: filepath.Join(dir, "bridge"),
		Network: startup.Network{Subnet: netip.MustParsePrefix("10.9.0.0/24")},
		Log:     slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	connected(t)
	h := &host{T: t, bridge: b, root: root, config: Config{
		Namespace: fmt.Sprint("containers-of-", os.Getpid()), Handlers: []string{"runc"},
		Dir: filepath.Join(dir, "run"), Plug: b.Plug,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
	t.Cleanup(func() {
		b.Close()
		h.nothingLeft()
	})
	return h
}

// nothingLeft checks that the host has nothing of any container.
func (h *host) nothingLeft() {
	h.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		h.Error(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, filepath.Dir(h.config.Dir)) {
			h.Errorf("left over: mount %s", line)
		}
	}
	for _, group := range (&Driver{Config: h.config}).cgroups() {
		h.Errorf("left over: cgroup %s", group)
	}
	for _, dir := range []string{"/sys/fs/cgroup/pids/", "/sys/fs/cgroup/",
		"/sys/fs/cgroup/unified/", "/run/containerd/runc/"} {
		if os.Getenv(oneVersion) != "" && strings.Contains(dir, "unified") {
			continue // an empty one, which runtimes fill
		}
		if _, err := os.Stat(dir + h.config.Namespace); err == nil {
			entries, _ := os.ReadDir(dir + h.config.Namespace)
			h.Errorf("left over: %s%s with %v", dir, h.config.Namespace, entries)
		}
	}
	processes, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range processes {
		line, _ := os.ReadFile(file)
		if bytes.Contains(line, []byte(h.config.Namespace)) ||
			bytes.Contains(line, []byte(h.config.Dir)) {
			h.Errorf("left over: process %s %q", file, line)
		}
	}
}

func (h *host) open() *Driver {
	h.Helper()
	d, err := Open(h.Context(), h.config)
	if err != nil {
		h.Fatal(err)
	}
	return d
}

func (h *host) program() wire.Program {
	return wire.Program{Command: []string{"/program", program}, Mark: openwhisk.Sentinel}
}

// nic leases a port of the bridge.
func (h *host) nic(n int) *sandbox.NIC {
	h.Helper()
	lease, err := h.bridge.Lease(fmt.Sprint("sandbox-", n))
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { h.bridge.Return(lease) })
	nic := lease.NIC
	nic.Address, _ = h.bridge.Network.Address(lease.Number)
	nic.Gateway, nic.DNS = h.bridge.Network.Gateway, h.bridge.Network.DNS
	return &nic
}

func (h *host) start(d *Driver, id string, p wire.Program) (sandbox.Sandbox, sandbox.Record) {
	h.Helper()
	spec := sandbox.Spec{ID: id, Dir: filepath.Join(h.TempDir(), id), Root: h.root, Program: p,
		MemoryMiB: 256, NIC: h.nic(1), Handler: h.handler}
	if err := os.MkdirAll(spec.Dir, 0o755); err != nil {
		h.Fatal(err)
	}
	var rec sandbox.Record
	tl := &timeline.Timeline{}
	s, err := d.Start(h.Context(), spec, tl, func(r sandbox.Record) error {
		rec = r
		return nil
	})
	if err != nil {
		h.Fatal(err)
	}
	if h.config.Linked == nil && slices.ContainsFunc(tl.Spans(), ofLink) {
		h.Errorf("a port of the bridge has no link to wait for: %v", tl.Spans())
	}
	return s, rec
}
