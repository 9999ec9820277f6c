package testbed

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/procfs"
)

func TestNested(t *testing.T) {
	root := t.TempDir()
	if nested(root) {
		t.Error("a machine without KVM nests")
	}
	parameter := filepath.Join(root, "sys/module/kvm_amd/parameters/nested")
	if err := os.MkdirAll(filepath.Dir(parameter), 0o755); err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]bool{"1": true, "Y": true, "0": false, "N": false} {
		if err := os.WriteFile(parameter, []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := nested(root); got != want {
			t.Errorf("nested=%s: %v", value, got)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	for complaint, c := range map[string]Config{
		"":            {},
		"name":        {Name: "../up"},
		"NICs":        {NICs: 9},
		"NVMe VFs":    {NVMeVFs: 128},
		"memory":      {MemoryMiB: 512},
		"CPUs":        {CPUs: -1},
		"accelerator": {Accel: "hvf"},
		"port":        {Forward: []int{70000}},
	} {
		err := c.withDefaults().check()
		if complaint == "" && err != nil ||
			complaint != "" && (err == nil || !strings.Contains(err.Error(), complaint)) {
			t.Errorf("%+v: %v, want a word about %q", c, err, complaint)
		}
	}
}

func TestServes(t *testing.T) {
	has := Config{NICs: 2, NVMeVFs: 8, MemoryMiB: 4096, CPUs: 2, Accel: "tcg", Forward: []int{80}}
	for _, c := range []struct {
		want Config
		ok   bool
	}{
		{has, true},
		{Config{NICs: 1}, true},
		{Config{NICs: 3}, false},
		{Config{NVMeVFs: 9}, false},
		{Config{MemoryMiB: 8192}, false},
		{Config{CPUs: 4}, false},
		{Config{Edu: true}, false},
		{Config{Accel: "kvm"}, false},
		{Config{Kernel: "bzImage"}, false},
		{Config{Append: "init_on_alloc=0"}, false},
		{Config{NoSnoop: true}, false},
		{Config{Forward: []int{81}}, false},
	} {
		if got := has.serves(c.want); got != c.ok {
			t.Errorf("%+v serves %+v: %v", has, c.want, got)
		}
	}
}

func TestTheCommandThatEndsIt(t *testing.T) {
	for name, want := range map[string]string{
		"": "fastiov testbed down", "two": "fastiov testbed down --name two",
	} {
		if got := (Config{Name: name}).withDefaults().down(); got != want {
			t.Errorf("%q ends testbed %q", got, name)
		}
	}
}

func TestQEMUArguments(t *testing.T) {
	d, img := dir("/s,tate"), image.Boot{Kernel: "k", Initrd: "i", Root: "r"}
	line := func(c Config) string {
		return strings.Join(qemuArgs(c.withDefaults(), d, img, 2222), " ")
	}
	full := line(Config{NICs: 2, NVMeVFs: 127, CPUs: 2, Edu: true, Forward: []int{3233},
		Accel: "tcg"})
	for _, want := range []string{
		"-accel tcg,thread=multi -cpu max,+svm,-erms", "-m 8192 -smp 2",
		"intel-iommu,intremap=on,snoop-control=on", "igb,bus=nic1port,netdev=wire1",
		"file=/s,,tate/wire1.pcap", "sriov_max_vfs=127",
		"hostfwd=tcp:127.0.0.1:2222-10.0.3.15:22", "hostfwd=tcp:127.0.0.1:3233-10.0.3.15:3233",
		"-device edu -device edu", "edu,bus=eduport,addr=0.1", "mount_tag=share",
	} {
		if !strings.Contains(full, want) {
			t.Errorf("no %q in %s", want, full)
		}
	}
	if strings.Contains(full, "kernel-irqchip") {
		t.Error("an emulated machine has no interrupt controller to split")
	}
	small := line(Config{NICs: 1, MemoryMiB: 1024, Accel: "kvm", Append: "init_on_alloc=0",
		NoSnoop: true})
	for args, cards := range map[string]int{full: 2, small: 1} {
		for _, each := range []string{"igb,bus=", "filter-dump,", "netdev=wire"} {
			want := cards
			if each == "netdev=wire" {
				want = 2 * cards // the card's and its recording's
			}
			if n := strings.Count(args, each); n != want {
				t.Errorf("%d times %q for %d cards in %s", n, each, cards, args)
			}
		}
	}
	for _, not := range []string{"nvme", "edu", "tcg", "wire1", "nic1port",
		"127.0.0.1:3233"} {
		if strings.Contains(small, not) {
			t.Errorf("%q in %s", not, small)
		}
	}
	if !strings.HasSuffix(small, " mitigations=off init_on_alloc=0") {
		t.Errorf("the kernel's command line is not extended in %s", small)
	}
	if !strings.HasSuffix(full, " mitigations=off") {
		t.Errorf("the kernel's command line has more than is its own in %s", full)
	}
	if !strings.Contains(small, "snoop-control=off") {
		t.Error("an IOMMU that makes accesses snoop, where none should")
	}
	if !strings.Contains(small, "accel=kvm,kernel-irqchip=split") {
		t.Error("KVM remaps interrupts only with a split interrupt controller")
	}
}

func TestImagesAreChecked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	if err := checkImage("kernel", path); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("a missing kernel: %v", err)
	}
	write(t, path, strings.Repeat("x", 2000))
	for _, what := range []string{"kernel", "initrd", "root image"} {
		if err := checkImage(what, path); err == nil || !strings.Contains(err.Error(), "corrupt") {
			t.Errorf("a corrupt %s: %v", what, err)
		}
	}
	write(t, path, strings.Repeat("x", 0x202)+"HdrS")
	if err := checkImage("kernel", path); err != nil {
		t.Error(err)
	}
}

func TestTakenPortIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	if err := checkPorts([]int{port}); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprint(port)) {
		t.Errorf("port %d is taken: %v", port, err)
	}
}

func TestDiskFull(t *testing.T) {
	err := diskFull("/x", fmt.Errorf("copy: %w", syscall.ENOSPC))
	if !strings.Contains(err.Error(), "is full") || diskFull("/x", os.ErrExist) != os.ErrExist {
		t.Error(err)
	}
}

// TestRecordNamesOneProcess shows that the record of an ended process counts as absent, whichever
// process has its pid now.
func TestRecordNamesOneProcess(t *testing.T) {
	d := dir(t.TempDir())
	ticks, err := procfs.StartTicks(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		rec  record
		live bool
	}{
		{record{PID: os.Getpid(), StartTicks: ticks}, true},
		{record{PID: os.Getpid(), StartTicks: ticks + 1}, false},
		{record{PID: 1 << 30, StartTicks: ticks}, false},
	} {
		if err := d.store(c.rec); err != nil {
			t.Fatal(err)
		}
		if r, err := d.load(); err != nil || (r != nil) != c.live {
			t.Errorf("%+v: %v, %v", c.rec, r, err)
		}
		if p, err := openProcess(c.rec.PID, c.rec.StartTicks); (err == nil) != c.live {
			t.Errorf("%+v: %v", c.rec, err)
		} else if err == nil {
			p.close()
		}
	}
	write(t, d.record(), "{")
	if _, err := d.load(); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged record: %v", err)
	}
}

// The host of another version of fastiov is not taken for one of this version.
func TestAHostOfAnotherVersionIsNotReused(t *testing.T) {
	d := dir(t.TempDir())
	ticks, err := procfs.StartTicks(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, kernel := range []string{DebianKernel, PatchedKernel} {
		has := Config{Kernel: kernel}.withDefaults()
		r := record{PID: os.Getpid(), StartTicks: ticks, HostKey: []byte("key"), Config: has}
		for made, want := range map[string]string{
			"": "another version", "former": "another version", made(kernel): "does not answer",
		} {
			r.Made = made
			if err := d.store(r); err != nil {
				t.Fatal(err)
			}
			if _, err := d.reuse(t.Context(), has); err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%s, made from %q: %v, want that it is of %s", kernel, made, err, want)
			}
		}
	}
}

func TestProcessIsSeenToEnd(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ticks, err := procfs.StartTicks(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	p, err := openProcess(cmd.Process.Pid, ticks)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if p.gone(time.Millisecond) {
		t.Error("a living process is gone")
	}
	p.kill()
	if !p.gone(time.Minute) {
		t.Error("a killed process is not gone")
	}
	_ = cmd.Wait()
}

func TestLockOfARemovedDirectoryIsTakenAnew(t *testing.T) {
	d := dir(filepath.Join(t.TempDir(), "x"))
	release, err := d.hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan func())
	go func() {
		release, err := d.hold(t.Context())
		if err != nil {
			t.Error(err)
			release = func() {}
		}
		second <- release
	}()
	d.removeIfIdle() // it is not idle, because the test holds the lock
	if _, err := os.Stat(string(d)); err != nil {
		t.Fatal("a directory in use was removed")
	}
	os.RemoveAll(string(d))
	release()
	(<-second)()
	if _, err := os.Stat(d.lock()); err != nil {
		t.Error("the lock that was taken is not the directory's:", err)
	}
	d.removeIfIdle()
	if _, err := os.Stat(string(d)); err == nil {
		t.Error("an idle directory stays")
	}
}

func TestLockOfADirectoryThatGoesAndComes(t *testing.T) {
	d := dir(filepath.Join(t.TempDir(), "x"))
	var removing sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		removing.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					d.removeIfIdle()
				}
			}
		})
	}
	for range 1000 {
		release, err := d.hold(t.Context())
		if err != nil {
			t.Error(err)
			break
		}
		runtime.Gosched()
		if _, err := os.Stat(d.lock()); err != nil {
			t.Error("removed while it is held:", err)
		}
		release()
	}
	close(done)
	removing.Wait()
}

func TestRelayReadsTheVerdict(t *testing.T) {
	for _, c := range []struct {
		out     string
		ran     bool
		verdict verdict
	}{
		{"=== RUN   TestA\n--- PASS: TestA (0.00s)\nPASS\n", true, passed},
		{"=== RUN   TestA\n    x_test.go:1: no card\n--- SKIP: TestA (0.00s)\nPASS\n", true, skipped},
		{"--- FAIL: TestA (0.10s)\nFAIL", true, failed},
		{"--- PASS: TestA (0.10s)\n    --- SKIP: TestA/sub (0.00s)\n", true, passed},
		{"testing: warning: no tests to run\nPASS\n", false, passed},
	} {
		var shown bytes.Buffer
		r := &relay{w: &shown, test: "TestA"}
		for chunk := range slices.Chunk([]byte(c.out), 3) {
			if _, err := r.Write(chunk); err != nil {
				t.Fatal(err)
			}
		}
		r.flush()
		if r.ran != c.ran || r.verdict != c.verdict {
			t.Errorf("%q: ran %v, verdict %v", c.out, r.ran, r.verdict)
		}
		if strings.Contains(shown.String(), "=== RUN") ||
			strings.Contains(shown.String(), "\nPASS") {
			t.Errorf("%q shows framing: %q", c.out, shown.String())
		}
	}
}

func TestOnlyMatchesOneTest(t *testing.T) {
	if got := only("TestA/b.c=it"); got != `^TestA$/^b\.c=it$` {
		t.Error(got)
	}
}

func TestProgressRepeatsNothingAfterItsEnd(t *testing.T) {
	var out bytes.Buffer
	s := newSteps(&out, "testbed")
	s.step("one")
	s.step("two")
	s.done()
	if n := strings.Count(out.String(), "testbed  "); n != 2 {
		t.Errorf("%d lines: %s", n, out.String())
	}
}

func TestExitCodeOfALostConnection(t *testing.T) {
	if _, err := exitCode(errors.New("EOF")); err == nil {
		t.Error("a lost connection is no exit code")
	}
}

func TestAPatternReachesSubtestsInTheHost(t *testing.T) {
	for _, c := range []struct{ name, pattern, want string }{
		{"TestX", "", ""},
		{"TestX", "TestX", ""},
		{"TestX/type1", "TestX/type1", ""},
		{"TestX/type1", "TestX/type1/hazard|torture", "/hazard|torture"},
		{"TestX", "TestX/type1/hazard", "/type1/hazard"},
	} {
		if got := below(c.name, c.pattern); got != c.want {
			t.Errorf("below(%q, %q) = %q, want %q", c.name, c.pattern, got, c.want)
		}
	}
}
