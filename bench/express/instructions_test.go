//go:build instructions

package express

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cavaliergopher/cpio"

	"github.com/fastiov/fastiov/bench/kept"
	"github.com/fastiov/fastiov/node-agent/image/build"
	"github.com/fastiov/fastiov/testbed"
)

// The host is emulated, and made of packages that are fetched.
func init() { apart = false }

const (
	counting = "FASTIOV_TEST_INSTRUCTIONS_INSIDE"
	told     = "rounds: "
)

//go:embed testdata/init.sh
var initScript []byte

// A budget bounds what a message takes on the express path: native's instructions are at least this
// part of its own, loosely, since boots differ by a hundredth.
var budgets = []struct {
	load    string
	packets float64 // of a message
	native  float64
}{
	{"udp-64", 1, 0.915},
	{"rr-udp-1", 2, 0.96},
	{"rr-tcp-1", 2, 0.975},
}

// ofFlowtable bounds it against nftables' flowtable, which lists the containers' ports.
const ofFlowtable = 1.02

// TestInstructions boots Debian's kernel on an emulated CPU whose clock counts instructions, plays
// the loads there by all arms, and holds what a message took against the budgets.
func TestInstructions(t *testing.T) {
	if os.Getenv(counting) != "" {
		play(t)
		return
	}
	r := resultOf(emulated(t))
	var text strings.Builder
	r.Print(&text)
	t.Logf("ns are instructions\n%s", &text)
	cost := func(load, arm string) float64 {
		c := r.cell(load, arm)
		if c == nil {
			t.Fatalf("%s was not played by %s", load, arm)
		}
		return c.CPUNs.Median
	}
	for _, b := range budgets {
		native, express := cost(b.load, Native), cost(b.load, Express)
		if native/express < b.native {
			t.Errorf("%s: %.0f instructions, native %.0f: %.4f of %.4f", b.load, express, native,
				native/express, b.native)
		}
		flowtable, longer := cost(b.load, Flowtable), cost(b.load, Longer)
		if express/flowtable > ofFlowtable {
			t.Errorf("%s: %.0f instructions, by a flowtable %.0f: %.4f × of at most %.2f ×", b.load,
				express, flowtable, express/flowtable, ofFlowtable)
		}
		// Boots differ by up to 0.9 %, which is 100 instructions of a message of UDP.
		if more := (longer - express) / b.packets; more < 50 || more > 200 {
			t.Errorf("%s: the control has %.0f instructions more a packet, not 100", b.load, more)
		}
		if bridge := cost(b.load, Bridge); flowtable > bridge*9/10 {
			t.Errorf("%s: the flowtable has nothing: %.0f instructions, %.0f without it", b.load,
				flowtable, bridge)
		}
	}
}

// play is the test in that host.
func play(t *testing.T) {
	rounds := &kept.Rounds[Round]{}
	b := Bench{Rounds: 3, Budget: 50 * time.Millisecond, Kept: rounds, Out: t.Output(),
		Arms:    []string{Native, Bridge, Express, Flowtable, Longer},
		Command: []string{"/proc/self/exe", "host"}}
	for _, budget := range budgets {
		b.Loads = append(b.Loads, budget.load)
	}
	if _, err := b.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	all, err := json.Marshal(rounds.All)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("%s%s\n", told, all)
}

// emulated returns the rounds of a host that boots, plays and ends.
func emulated(t *testing.T) (rounds []Round) {
	t.Helper()
	cache, err := build.Open("", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	boot, err := cache.Testbed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	qemu, release, err := testbed.QEMU(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	initrd := filepath.Join(t.TempDir(), "initrd")
	if err := os.WriteFile(initrd, archive(t, boot.Initrd), 0o644); err != nil {
		t.Fatal(err)
	}
	words := qemu.Command("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-M", "q35", "-cpu", "max", "-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off",
		"-smp", "1", "-m", "1024", "-serial", "stdio", "-kernel", boot.Kernel, "-initrd", initrd,
		"-append", "console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable mitigations=off",
		"-drive", "if=none,id=root,format=raw,readonly=on,file="+boot.Root,
		"-device", "virtio-blk-pci,drive=root")
	const within = 10 * time.Minute // it plays for three
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // which it ends with
	defer runtime.UnlockOSThread()
	console, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, console)
	}
	for line := range strings.Lines(string(console)) {
		if all, is := strings.CutPrefix(line, told); is {
			if err := json.Unmarshal([]byte(all), &rounds); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(rounds) == 0 {
		t.Fatalf("the host tells no rounds:\n%s", console)
	}
	return rounds
}

// archive returns an initrd behind that of the testbed's host, whose files it has, too: this test,
// and this machine's tools with their libraries.
func archive(t *testing.T, behind string) []byte {
	t.Helper()
	former, err := os.ReadFile(behind)
	if err != nil {
		t.Fatal(err)
	}
	all := bytes.NewBuffer(former)
	for all.Len()%512 != 0 {
		all.WriteByte(0)
	}
	files := map[string]string{}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	files["test"] = self
	for _, tool := range []string{"iptables-restore", "nft"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			if os.Getenv("FASTIOV_CI") != "" {
				t.Fatal(err)
			}
			t.Skipf("%s is missing: apt-get install iptables nftables", tool)
		}
		libraries, err := exec.Command("ldd", path).Output()
		if err != nil {
			t.Fatalf("ldd %s: %v", path, err)
		}
		files["usr/sbin/"+tool] = path
		for _, word := range strings.Fields(string(libraries)) {
			if strings.HasPrefix(word, "/") {
				files[word[1:]] = word
			}
		}
	}
	matches, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range matches {
		files[match[1:]] = match
	}
	w := cpio.NewWriter(all)
	made := map[string]bool{".": true}
	var folder func(name string)
	add := func(name string, mode cpio.FileMode, content []byte) {
		h := cpio.Header{Name: name, Mode: mode, Size: int64(len(content)), Links: 1}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	folder = func(name string) {
		if !made[name] {
			folder(filepath.Dir(name))
			made[name] = true
			add(name, cpio.TypeDir|0o755, nil)
		}
	}
	for name, from := range files {
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		folder(filepath.Dir(name))
		add(name, cpio.TypeReg|0o755, content)
	}
	add("init", cpio.TypeReg|0o755, initScript)
	add("modprobe", cpio.TypeReg|0o755,
		[]byte("#!/bin/busybox sh\nexec /bin/busybox chroot /lower /usr/sbin/modprobe \"$@\"\n"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return all.Bytes()
}
