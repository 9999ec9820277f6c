package jail

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func host(t *testing.T) *Host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	h, err := Open(fmt.Sprintf("fastiov-jail-test-%d", os.Getpid()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		for _, line := range h.Leftovers(nil) {
			t.Error("left over: ", line)
		}
		h.Close()
	})
	return h
}

// shell starts a cell with a shell in it that has said it is up; what it is sent it runs.
func shell(t *testing.T, h *Host, id string, vf *sandbox.VF) (*Cell, io.Writer, *bufio.Reader) {
	t.Helper()
	c, err := h.Build(sandbox.Spec{ID: id, VF: vf}, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	cmd := exec.Command("/bin/sh")
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := c.Start(cmd, 32); err != nil {
		t.Fatal(err)
	}
	return c, in, bufio.NewReader(out)
}

func ask(t *testing.T, in io.Writer, out *bufio.Reader, question string) string {
	t.Helper()
	fmt.Fprintln(in, question)
	answer, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(answer)
}

func TestTheProcessIsConfined(t *testing.T) {
	node := filepath.Join(t.TempDir(), "7")
	if err := os.WriteFile(node, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	h := host(t)
	if can, _ := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_RESOURCE, 0, 0, 0); can != 1 {
		t.Skip("needs CAP_SYS_RESOURCE, to let a VMM pin memory")
	}
	c, in, out := shell(t, h, "confined", &sandbox.VF{BDF: "0000:01:10.0", Group: node})
	want := fmt.Sprint(c.User)
	for question, answer := range map[string]string{
		"id -u": want, "id -g": want, "id -G": want, "ulimit -l": "32768",
		"grep -c fastiov-jail-test /proc/self/cgroup": "1",
		"grep CapEff /proc/self/status":               "CapEff:\t0000000000000000",
	} {
		if got := ask(t, in, out, question); got != answer {
			t.Errorf("%s: %q, want %q", question, got, answer)
		}
	}
	var stat unix.Stat_t
	if err := unix.Stat(node, &stat); err != nil || int(stat.Uid) != c.User || stat.Mode&0o777 != 0o600 {
		t.Errorf("VFIO node has owner %d, mode %o (%v); want %d, 600", stat.Uid, stat.Mode&0o777, err, c.User)
	}
	c.Close()
	c.Close()
	if how := c.How(); !strings.Contains(how, "killed") {
		t.Errorf("ended %q, want killed", how)
	}
	if err := unix.Stat(node, &stat); err != nil || stat.Uid != 0 {
		t.Errorf("VFIO node has owner %d after the end (%v), want 0", stat.Uid, err)
	}
}

func TestASlotIsHeldByItsProcess(t *testing.T) {
	h := host(t)
	c, _, _ := shell(t, h, "holder", nil)
	c.slot.Close() // as when the agent dies: now only the process holds it
	free := func() bool {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		return unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("@fastiov/slot/%d", c.User-firstUser)}) == nil
	}
	if free() {
		t.Error("the slot is free while its process lives")
	}
	c.Close()
	if !free() {
		t.Error("the slot is taken after its process died")
	}
}

func TestAdopt(t *testing.T) {
	h := host(t)
	c, in, out := shell(t, h, "orphan", nil)
	spec := sandbox.Spec{ID: "orphan"}
	rec := c.Record(spec)
	adopted, err := h.Adopt(rec)
	if err != nil {
		t.Fatal(err)
	}
	if adopted.User != c.User {
		t.Errorf("adopted user %d, want %d", adopted.User, c.User)
	}
	for name, wrong := range map[string]sandbox.Record{
		"pid reused":    {Spec: spec, PID: rec.PID, StartTicks: rec.StartTicks + 1},
		"other sandbox": {Spec: sandbox.Spec{ID: "other"}, PID: rec.PID, StartTicks: rec.StartTicks},
		"no process":    {Spec: spec, PID: 1 << 22, StartTicks: rec.StartTicks},
	} {
		if _, err := h.Adopt(wrong); err == nil {
			t.Errorf("%s: adopted", name)
		}
	}
	if got := ask(t, in, out, "echo alive"); got != "alive" {
		t.Errorf("after adoption: %q", got)
	}
	adopted.Close()
	<-adopted.Done()
	<-c.Done()
}

func TestBuildRefuses(t *testing.T) {
	h := host(t)
	for name, spec := range map[string]sandbox.Spec{
		"path in id": {ID: "../x"}, "empty id": {}, "long id": {ID: strings.Repeat("a", 41)},
		"no VFIO node": {ID: "novf", VF: &sandbox.VF{BDF: "0000:01:10.0", Group: "/dev/vfio/absent"}},
	} {
		if c, err := h.Build(spec, 64); err == nil {
			t.Errorf("%s: built", name)
			c.Close()
		}
	}
}

func TestLeftoversNamesWhatNobodyOwns(t *testing.T) {
	h := host(t)
	c, _, _ := shell(t, h, "lost", nil)
	if left := h.Leftovers(map[string]bool{"lost": true}); len(left) != 0 {
		t.Errorf("a live sandbox is called left over: %v", left)
	}
	left := strings.Join(h.Leftovers(nil), "\n")
	if !strings.Contains(left, "cgroup fastiov/lost") || !strings.Contains(left, fmt.Sprintf("process %d", c.proc.pid)) {
		t.Errorf("leftovers %q name neither cgroup nor process", left)
	}
	h.End(sandbox.Spec{ID: "lost"})
	h.End(sandbox.Spec{ID: "lost"})
	<-c.Done()
}
