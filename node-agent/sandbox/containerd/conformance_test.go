package containerd

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/sandboxtest"
)

// A tape is an archive in memory, and what did not fit into it.
type tape struct {
	*bytes.Reader
	behind bytes.Buffer
}

const sector = 512

func (m *tape) Spill(fill func(io.Writer) error) (int64, error) {
	at := m.Size() + int64(m.behind.Len())
	err := fill(&m.behind)
	m.behind.Write(make([]byte, -m.behind.Len()&(sector-1)))
	return at, err
}

// An image that was pulled indexes its layers: their files come from the archives as they are.
func TestAnImageOfLayers(t *testing.T) {
	h := newHost(t)
	whole, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	var spec sandbox.Spec
	dir := t.TempDir()
	tree, err := rootfs.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	for n, files := range []map[string]string{
		{"program": string(whole), "etc/": "", "tmp/": "", "lib/": "", "lib64/": ""},
		{"etc/greeting": strings.Repeat("hello ", 1000)},
	} {
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		for name, content := range files {
			header := &tar.Header{Name: name, Mode: 0o777, Size: int64(len(content))}
			if err := w.WriteHeader(header); err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(w, content)
		}
		w.Close()
		m := &tape{Reader: bytes.NewReader(archive.Bytes())}
		var index bytes.Buffer
		if _, err := rootfs.Scan(m, rootfs.Limits{Bytes: 1 << 30, Names: 100, Naming: 1 << 20},
			&index); err != nil {
			t.Fatal(err)
		}
		blob := append(archive.Bytes(), m.behind.Bytes()...)
		blob = append(blob, make([]byte, -len(blob)&4095)...)
		if err := tree.Overlay(&index, rootfs.Blob{ReaderAt: bytes.NewReader(blob),
			Bytes: int64(len(blob))}); err != nil {
			t.Fatal(err)
		}
		spec.Layers = append(spec.Layers, filepath.Join(dir, fmt.Sprint("layer-", n)))
		if err := os.WriteFile(spec.Layers[n], blob, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	spec.Root = filepath.Join(dir, "root.erofs")
	if err := tree.WriteImage(spec.Root); err != nil {
		t.Fatal(err)
	}
	right := func(at string) {
		program, err := os.ReadFile(filepath.Join(at, "program"))
		if err != nil || !bytes.Equal(program, whole) {
			t.Errorf("the program has %d bytes of %d, %v", len(program), len(whole), err)
		}
		greeting, err := os.ReadFile(filepath.Join(at, "etc/greeting"))
		if err != nil || len(greeting) != 6000 {
			t.Errorf("the second layer's file has %d bytes, %v", len(greeting), err)
		}
	}
	r, err := openRoots(h.config.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	at, err := r.mounted(spec.Root, spec.Layers)
	if err != nil {
		t.Fatal(err)
	}
	right(at)
	moved := spec.Root + ".moved" // as good as evicted
	if err := os.Rename(spec.Root, moved); err != nil {
		t.Fatal(err)
	}
	if spec.Root = moved; len(r.open) != 1 {
		t.Fatalf("%v are mounted", r.open)
	}
	former := at
	if at, err = r.mounted(spec.Root, spec.Layers); err != nil {
		t.Fatal(err)
	}
	if right(at); len(r.open) != 1 {
		t.Errorf("%v are mounted, and one image is there", r.open)
	}
	if _, err := os.Stat(former); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", former, err)
	}
	at = filepath.Join(dir, "by loops") // as where the kernel mounts no files
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := mountByLoops(at, spec.Root, spec.Layers); err != nil {
		t.Fatal(err)
	}
	right(at)
	unmount(at)
	r.close()
	ofOthers := func(loop string) bool {
		file, _ := os.ReadFile(loop)
		return !bytes.HasPrefix(file, []byte(dir))
	}
	// The kernel keeps a loop device while somebody else looks at it.
	for late := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
		if loops = slices.DeleteFunc(loops, ofOthers); len(loops) == 0 {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("left: %v", loops)
		}
	}
}

func TestConformance(t *testing.T) {
	h := newHost(t)
	nics := make([]*sandbox.NIC, 4)
	for n := range nics {
		nics[n] = h.nic(n)
	}
	kinds := map[string]func(int) *sandbox.NIC{
		"without a network": func(int) *sandbox.NIC { return nil },
		"on a bridge":       func(n int) *sandbox.NIC { return nics[n] },
	}
	if testing.Short() {
		delete(kinds, "without a network")
	}
	for name, nic := range kinds {
		t.Run(name, func(t *testing.T) {
			sandboxtest.Subject{
				Open: func() (sandbox.Driver, func(), error) {
					d, err := Open(t.Context(), h.config)
					if err != nil {
						return nil, nil, err
					}
					return d, d.Close, nil
				},
				Spec: func(n int) sandbox.Spec {
					return sandbox.Spec{Root: h.root, Program: h.program(), MemoryMiB: 256,
						NIC: nic(n)}
				},
				AtOnce: 4, Within: time.Minute, Survives: true, Log: "answered 200",
			}.Run(t)
		})
	}
}

// ask has the program of a sandbox answer a GET.
func ask(t *testing.T, s sandbox.Sandbox, port int, answer any) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return s.Dial(ctx, port)
		}}}
	response, err := client.Get("http://program/self")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil {
		err = json.Unmarshal(text, answer)
	}
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// A program of plain HTTP runs as its image, or who starts it, wants: user, directory, port and
// variables. It may do less than containerd lets others do.
func TestAProgramInItsPlace(t *testing.T) {
	h := newHost(t)
	d := h.open()
	defer d.Close()
	for name, uid := range map[string]uint32{"root": 0, "user": 1000} {
		t.Run(name, func(t *testing.T) {
			p := h.program()
			p.Protocol, p.Port, p.Dir, p.UID, p.GID = "http", 9000, "/work", uid, 2000
			p.Env = map[string]string{"PORT": "9000", "GREETING": "hello = world"}
			p.Mounts = []wire.Mount{
				{Path: "/etc/app", Files: []wire.File{
					{Name: "deep/name", Data: []byte("value"), Mode: 0o444}}},
				{Path: "/etc/app.conf", Files: []wire.File{{Data: []byte("conf"), Mode: 0o444}}}}
			s, _ := h.start(d, "c-"+name, p)
			defer s.Close()
			var is self
			ask(t, s, 9000, &is)
			if is.UID != int(uid) || is.GID != 2000 || is.Dir != "/work" ||
				is.Env["GREETING"] != "hello = world" || is.Env["PATH"] != searchPath {
				t.Errorf("it is %+v", is)
			}
			if !strings.Contains(is.Hosts, " c-"+name+"\n") ||
				is.Resolv != "nameserver 10.9.0.1\n" || is.Tmp != "allowed" ||
				!slices.Equal(is.Links, []string{"lo", "eth0"}) {
				t.Errorf("its files are %+v", is)
			}
			if is.Given != "value allowed" || is.Alone != "conf allowed" ||
				!strings.Contains(is.Changed, "read-only file system") {
				t.Errorf("of its files it says %q, %q, %q", is.Given, is.Alone, is.Changed)
			}
			again := []wire.Mount{{Path: "/etc/app", Files: []wire.File{
				{Name: "deep/name", Data: []byte("other"), Mode: 0o444}}}, {Path: "/etc/app.conf"}}
			if err := s.(sandbox.Renewer).Renew("", again); err != nil {
				t.Error(err)
			}
			ask(t, s, 9000, &is)
			if is.Given != "other allowed" || is.Alone != "conf allowed" {
				t.Errorf("of its renewed files it says %q, %q", is.Given, is.Alone)
			}
			const root = "00000000000004fb" // what capabilities lists
			want := map[string]string{"Seccomp": "2", "NoNewPrivs": "1", "CapBnd": root,
				"CapEff": root, "CapInh": "0000000000000000", "CapAmb": "0000000000000000"}
			if uid != 0 {
				want["CapBnd"], want["CapEff"] = want["CapInh"], want["CapInh"]
			}
			for name, value := range want {
				if is.Status[name] != value {
					t.Errorf("%s is %s, want %s", name, is.Status[name], value)
				}
			}
			for what, said := range map[string]string{"a raw socket": is.Raw, "a mount": is.Mount,
				"a disk": is.Device, "a sysctl": is.Sys} {
				if said == "allowed" {
					t.Errorf("it got %s", what)
				}
			}
			if is.Processes != 1 || !strings.HasPrefix(is.Core, "0 ") {
				t.Errorf("it sees %d processes, and of the kernel's memory %s", is.Processes,
					is.Core)
			}
		})
	}
}

// pidOf finds the process whose command line has all words.
func pidOf(t *testing.T, words ...string) int {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, _ := os.ReadFile(file)
		if !slices.ContainsFunc(words, func(w string) bool {
			return !bytes.Contains(line, []byte(w))
		}) && !bytes.Contains(line, []byte(program)) {
			var pid int
			_, _ = fmt.Sscanf(file, "/proc/%d/", &pid)
			return pid
		}
	}
	t.Fatalf("no process has %q", words)
	return 0
}

// A containerd that is killed is not noticed by what runs; it is started again, and all goes on. A
// shim that is killed takes its sandbox along, and nothing else.
func TestContainerdAndShimsAreKilled(t *testing.T) {
	h := newHost(t)
	d := h.open()
	defer d.Close()
	s, _ := h.start(d, "stays", h.program())
	for n := range 3 {
		id := fmt.Sprint("other-", n) // a killed containerd may have one for a while
		if err := syscall.Kill(pidOf(t, "--config", h.config.Dir), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		var is self
		ask(t, s, wire.RuntimePort, &is)
		other, _ := h.start(d, id, h.program()) // waits until containerd is back
		socket := d.shimSocket(id)
		if _, err := os.Stat(socket); err != nil {
			t.Error(err)
		}
		shim := pidOf(t, "containerd-shim", "-id\x00"+id+"\x00")
		if err := syscall.Kill(shim, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-other.Done()
		if other.Err() == nil {
			t.Error("its shim was killed, but Err is nil")
		}
		if _, err := os.Stat(socket); err == nil {
			t.Error("the shim's socket is left over")
		}
		ask(t, s, wire.RuntimePort, &is)
		if err := s.Pause(t.Context()); err != nil {
			t.Error(err)
		}
		if err := s.Resume(t.Context()); err != nil {
			t.Error(err)
		}
		ask(t, s, wire.RuntimePort, &is)
	}
	s.Close()
	if left := d.Leftovers(nil); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// What an agent left that was killed, with its containerd, is cleared by another process.
func TestClear(t *testing.T) {
	h := newHost(t)
	d := h.open()
	_, rec := h.start(d, "left", h.program())
	d.Close()
	// An agent is killed while it starts a sandbox, which it has not noted yet.
	starting := newBox(d, sandbox.Spec{ID: "starting", Root: h.root, MemoryMiB: 256})
	if err := d.cgroup(starting.spec).make(); err != nil {
		t.Fatal(err)
	}
	if _, err := starting.root(); err != nil {
		t.Fatal(err)
	}
	if err := Clear(t.Context(), h.config.Dir, h.config.Log); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", rec.PID)); err == nil {
		t.Error("its process is there")
	}
	if _, err := os.Stat(h.config.Dir); err == nil {
		t.Error("its directory is there")
	}
	if err := Clear(t.Context(), h.config.Dir, h.config.Log); err != nil {
		t.Error(err)
	}
}

// Where another's containerd has gone, the roots of its containers are unmounted wherever it had
// them.
func TestClearWithoutAnothersContainerd(t *testing.T) {
	h := newHost(t)
	theirs, err := startDaemon(filepath.Join(filepath.Dir(h.config.Dir), "theirs"), h.config.Log)
	if err != nil {
		t.Fatal(err)
	}
	ended := sync.OnceFunc(theirs.close)
	defer ended()
	h.config.Address = theirs.address
	d := h.open()
	h.start(d, "left", h.program())
	d.Close()
	ended()
	if err := Clear(t.Context(), h.config.Dir, h.config.Log); err != nil {
		t.Error(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(mounts, []byte(theirs.dir)) {
		t.Errorf("it leaves %s, %v", mounts, err)
	}
	for line := range strings.Lines(string(mounts)) { // so that a failure leaves nothing
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, theirs.dir) {
			unmount(at)
		}
	}
}

// Where containerd was removed meanwhile, what it left is ended without it.
func TestClearWithoutContainerd(t *testing.T) {
	h := newHost(t)
	d := h.open()
	_, rec := h.start(d, "left", h.program())
	d.Close()
	t.Setenv("PATH", "")
	if err := Clear(t.Context(), h.config.Dir, h.config.Log); err != nil {
		t.Error(err)
	}
	for late := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", rec.PID))
		if err != nil || bytes.Contains(stat, []byte(") Z ")) {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("its process is there: %s", stat)
		}
	}
	if _, err := os.Stat(h.config.Dir); err == nil {
		t.Error("its directory is there")
	}
}

// Where a containerd of others lives and something else fails, nothing is forgotten: it would keep
// the containers for ever.
func TestClearThatFails(t *testing.T) {
	h := newHost(t)
	theirs, err := startDaemon(t.TempDir(), h.config.Log)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.close()
	h.config.Address = theirs.address
	d := h.open()
	_, rec := h.start(d, "left", h.program())
	d.Close()
	inTheWay := noteFile(h.config.Dir) + ".new"
	if err := os.Mkdir(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Clear(t.Context(), h.config.Dir, h.config.Log); err == nil {
		t.Error("it says that all is well")
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", rec.PID)); err != nil {
		t.Errorf("its process: %v", err)
	}
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	if err := Clear(t.Context(), h.config.Dir, h.config.Log); err != nil {
		t.Error(err)
	}
	d = h.open()
	if left := d.Leftovers(nil); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	d.Close()
}

// Sandboxes in a containerd that is gone are ended by the next agent, which has another one.
func TestAContainerdThatIsGone(t *testing.T) {
	h := newHost(t)
	dir := t.TempDir()
	theirs, err := startDaemon(dir, h.config.Log)
	if err != nil {
		t.Fatal(err)
	}
	h.config.Address = theirs.address
	d := h.open()
	_, rec := h.start(d, "left", h.program())
	shim := pidOf(t, "containerd-shim", "-id\x00left\x00")
	group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", shim))
	if err != nil || !bytes.Contains(group, []byte(h.config.Namespace+"/"+shims)) {
		t.Errorf("its shim is in %s, %v", group, err)
	}
	d.Close()
	killed, err := openRoots(rootsDir(h.config.Dir)) // by an agent that is killed
	if err != nil {
		t.Fatal(err)
	}
	if _, err := killed.mounted(rec.Spec.Root, nil); err != nil {
		t.Fatal(err)
	}
	theirs.close()
	h.config.Address = ""
	d = h.open()
	for _, pid := range []int{rec.PID, shim} {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && !bytes.Contains(stat, []byte(") Z ")) { // its new parent may be slow
			t.Errorf("process %d is there: %s", pid, stat)
		}
	}
	if d.Address == theirs.address {
		t.Error("the driver has chosen a containerd that is gone")
	}
	d.Close()
	if theirs, err = startDaemon(dir, h.config.Log); err != nil {
		t.Fatal(err)
	}
	defer theirs.close()
	h.config.Address = theirs.address
	d = h.open() // it, too, finds that they have ended
	d.End(rec.Spec)
	if left := d.Leftovers(nil); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	d.Close()
}

// A mute task does what it is told, and its answer is lost.
type mute struct{ client.Task }

func (m mute) Pause(ctx context.Context) error {
	return errors.Join(errdefs.ErrUnavailable, m.Task.Pause(ctx))
}

func (m mute) Resume(ctx context.Context) error {
	return errors.Join(errdefs.ErrUnavailable, m.Task.Resume(ctx))
}
