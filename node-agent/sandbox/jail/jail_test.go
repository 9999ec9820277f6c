package jail

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/cgroup"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == probeName {
		probe()
		return
	}
	runTests(m)
}

var runTests = func(m *testing.M) { leaks.Main(m) }

func config(t *testing.T) Config {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	name := fmt.Sprintf("fastiov-jail-test-%d", os.Getpid())
	return Config{
		Name: name, Program: os.Args[0], Rooms: 1, BestEffort: true,
		Log: slog.New(slog.DiscardHandler),
	}
}

// missing skips a test because something is missing on this machine; in continuous integration it
// fails the test.
func missing(t *testing.T, why error) {
	t.Helper()
	if os.Getenv("FASTIOV_CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

func host(t *testing.T) *Host {
	t.Helper()
	h, err := Open(config(t))
	if err != nil {
		missing(t, err)
	}
	t.Cleanup(func() {
		for _, line := range h.Leftovers(nil) {
			t.Error("left over: ", line)
		}
		h.Close()
	})
	return h
}

// A subject is a probe in a cell.
type subject struct {
	*testing.T
	*Cell
	in  io.Writer
	out *bufio.Reader
}

// handed is a NIC that is a device of the host.
func handed(bdf, group string) *sandbox.NIC {
	return &sandbox.NIC{PCI: &sandbox.PCI{BDF: bdf, Group: group}}
}

func start(t *testing.T, h *Host, id string, nic *sandbox.NIC) subject {
	t.Helper()
	c, err := h.Build(sandbox.Spec{ID: id, NIC: nic}, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	cmd := &exec.Cmd{Args: []string{os.Args[0], probeName}, Stderr: os.Stderr}
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := c.Start(cmd, 32); err != nil {
		t.Fatal(err)
	}
	return subject{t, c, in, bufio.NewReader(out)}
}

func (s subject) ask(question string) string {
	s.Helper()
	fmt.Fprintln(s.in, question)
	answer, err := s.out.ReadString('\n')
	if err != nil {
		s.Fatalf("%s: %v", question, err)
	}
	return strings.TrimSpace(answer)
}

func (s subject) expect(answers map[string]string) {
	s.Helper()
	for question, want := range answers {
		if got := s.ask(question); got != want {
			s.Errorf("%s: %q, want %q", question, got, want)
		}
	}
}

func TestTheProcessIsConfined(t *testing.T) {
	h := host(t)
	s := start(t, h, "confined", nil)
	user := fmt.Sprint(s.User)
	s.expect(map[string]string{
		"status Uid": strings.Repeat(user+" ", 3) + user,
		"status Gid": strings.Repeat(user+" ", 3) + user, "status Groups": "",
		"status CapEff": "0000000000000000", "status CapPrm": "0000000000000000",
		"status CapBnd":     "0000000000000000",
		"status NoNewPrivs": "1", "status Seccomp": "2",
		"limit 1": "8388608 8388608", "limit 4": "1 1", "limit 6": "128 128", "limit 7": "512 512",
		"pid": "1", "name": "vmm", "list /dev": "null pci vfio", "list /dev/vfio": "vfio",
		"list /sys": "error: open /sys: no such file or directory",
	})
	for _, kind := range []string{"net", "ipc", "uts", "mnt", "pid"} {
		ours, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			t.Fatal(err)
		}
		if theirs := s.ask("space " + kind); theirs == ours || !strings.HasPrefix(theirs, kind) {
			t.Errorf("its %s namespace is %s, ours %s", kind, theirs, ours)
		}
	}
	// itself, by its number outside, self and thread-self
	if others := strings.Fields(s.ask("list /proc")); len(others) != 3 {
		t.Errorf("in /proc are %v", others)
	}
	if !slices.Contains(h.root.Group("confined").PIDs(), s.PID()) {
		t.Error("it is not in its cgroup")
	}
	s.Close()
	s.Close()
	if how := s.How(); !strings.Contains(how, "killed") {
		t.Errorf("ended %q, want killed", how)
	}
}

func TestTheVFIsInTheRoom(t *testing.T) {
	h := host(t)
	if can, _ := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_RESOURCE, 0, 0, 0); can != 1 {
		t.Skip("needs CAP_SYS_RESOURCE, to let a VMM pin memory")
	}
	group := filepath.Join(t.TempDir(), "7")
	if err := os.WriteFile(group, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, h, "vf", handed("0000:01:10.0", group))
	s.expect(map[string]string{
		"node /dev/vfio/7": fmt.Sprintf("%d 600", s.User), "limit 8": "33554432 33554432",
		"list /dev/vfio":                         "7 vfio",
		"link /dev/pci/0000:01:10.0/iommu_group": "../7",
	})
}

func TestASlotIsHeldByItsProcess(t *testing.T) {
	h := host(t)
	for n := range 3 { // a sandbox of another test may be the next in the slot
		s := start(t, h, fmt.Sprint("holder", n), nil)
		user := s.User
		s.slot.file.Close() // as if the agent had died: now only the process holds the slot
		if taken, err := lockSlot(user); taken != nil || err != nil {
			t.Errorf("the slot is free while its process lives (%v)", err)
		}
		s.Close()
		if taken, err := lockSlot(user); err != nil {
			t.Fatal(err)
		} else if taken != nil {
			taken.release()
			return
		}
	}
	t.Fatal("three slots are taken after their processes died")
}

func TestTheUserOfWhoLivesIsNotGivenTwice(t *testing.T) {
	h := host(t)
	s := start(t, h, "sly", nil)
	s.ask("drop") // its file, by which the kernel knows that the slot is taken
	s.slot.file.Close()
	later, err := Open(config(t))
	if err != nil {
		t.Fatal(err)
	}
	defer later.Close()
	// so that the user of the process without its file is tried next
	lastSlot.Store(int64(s.User - firstUser - 1))
	c, err := later.Build(sandbox.Spec{ID: "next"}, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.User == s.User {
		t.Errorf("user %d is given twice", c.User)
	}
}

func TestSlotsAreRoots(t *testing.T) {
	start(t, host(t), "holder", nil)
	var dir unix.Stat_t
	if err := unix.Stat(slotDir, &dir); err != nil || dir.Uid != 0 || dir.Mode&0o777 != 0o700 {
		t.Errorf("%s is of user %d, mode %o (%v): others can take slots",
			slotDir, dir.Uid, dir.Mode&0o777, err)
	}
}

func TestMissingControllersRefuse(t *testing.T) {
	c := config(t)
	c.BestEffort = false
	root, err := cgroup.Open(c.Name)
	if err != nil {
		missing(t, err)
	}
	missing := len(root.Missing) > 0
	root.Remove()
	h, err := Open(c)
	if err == nil {
		h.Close()
	}
	if missing != (err != nil) || missing && !strings.Contains(err.Error(),
		"--limits=best-effort") {
		t.Errorf("controllers are missing: %t; Open says %v", missing, err)
	}
}

func TestAStockThatIsEmptyIsNoRefusal(t *testing.T) {
	c := config(t)
	c.Rooms = 0
	h, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	s := start(t, h, "late", nil)
	s.expect(map[string]string{"echo here": "here"})
	s.Close()
	if n := h.MadeOnPath(); n != 1 {
		t.Errorf("%d rooms were made on the path, want 1", n)
	}
}

func TestAdopt(t *testing.T) {
	h := host(t)
	s := start(t, h, "orphan", nil)
	spec := sandbox.Spec{ID: "orphan"}
	s.ask("echo up") // so the process has changed from root to its user by now
	rec := s.Record(spec)
	adopted, err := h.Adopt(rec)
	if err != nil {
		t.Fatal(err)
	}
	if adopted.User != s.User {
		t.Errorf("adopted user %d, want %d", adopted.User, s.User)
	}
	for name, wrong := range map[string]sandbox.Record{
		"pid reused": {Spec: spec, PID: rec.PID, StartTicks: rec.StartTicks + 1},
		"other sandbox": {Spec: sandbox.Spec{ID: "other"}, PID: rec.PID,
			StartTicks: rec.StartTicks},
		"no process": {Spec: spec, PID: 1 << 22, StartTicks: rec.StartTicks},
	} {
		if _, err := h.Adopt(wrong); err == nil {
			t.Errorf("%s: adopted", name)
		}
	}
	if got := s.ask("echo alive"); got != "alive" {
		t.Errorf("after adoption: %q", got)
	}
	adopted.Close()
	<-adopted.Done()
	<-s.Done()
}

func TestSeccompIsNamed(t *testing.T) {
	s := start(t, host(t), "caller", nil)
	s.expect(map[string]string{"socket": "error: operation not permitted"})
	fmt.Fprintln(s.in, "keyctl")
	<-s.Done()
	if how := s.How(); !strings.HasPrefix(how, "killed by seccomp") {
		t.Errorf("it ended %q", how)
	} else {
		t.Log(how)
	}
}

func TestAnUnknownVMMIsLogged(t *testing.T) {
	c := config(t)
	var log bytes.Buffer
	c.Log = slog.New(slog.NewTextHandler(&log, nil))
	h, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	if !strings.Contains(log.String(), "no known build") {
		t.Errorf("the log has %q", log.String())
	}
}

func TestRefused(t *testing.T) {
	record := "5,2511,61724,-;audit: type=1326 audit(1700000000.123:45): auid=4294967295 uid=1900000007 gid=1900000007 ses=4294967295 " +
		`pid=812 comm="qemu-system-x86" exe="/usr/bin/qemu-system-x86_64" sig=31 arch=c000003e syscall=41 compat=0 ip=0x7f code=0x80000000`
	if pid, call, ok := refused(record); !ok || pid != 812 || call != 41 {
		t.Errorf("%d %d %t", pid, call, ok)
	}
	for _, other := range []string{
		"", "5,1,2,-;audit: type=1400 pid=812 syscall=41 ", strings.Replace(record, "5,", "13,", 1),
	} {
		if _, _, ok := refused(other); ok {
			t.Errorf("taken: %s", other)
		}
	}
}

func TestBuildRefuses(t *testing.T) {
	h := host(t)
	for name, spec := range map[string]sandbox.Spec{
		"path in id": {ID: "../x"}, "empty id": {}, "long id": {ID: strings.Repeat("a", 41)},
		"no VFIO node": {ID: "novf", NIC: handed("0000:01:10.0", "/dev/vfio/absent")},
	} {
		if c, err := h.Build(spec, 64); err == nil {
			t.Errorf("%s: built", name)
			c.Close()
		}
	}
}

// A former version made the user of a sandbox the owner of its VF's node.
func TestNodesAreGivenBack(t *testing.T) {
	h := host(t)
	node := filepath.Join(t.TempDir(), "7")
	if err := os.WriteFile(node, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	spec := sandbox.Spec{ID: "former", NIC: handed("0000:01:10.0", node)}
	adopted := func() {
		s := start(t, h, "former", nil)
		s.ask("echo up")
		c, err := h.Adopt(s.Record(spec))
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	other := func() {
		if err := End(config(t).Name+"-other", spec); err != nil {
			t.Error(err)
		}
	}
	for name, end := range map[string]func(){
		"End of a host": func() { h.End(spec) }, "End": other, "Close": adopted,
	} {
		for owner, want := range map[int]uint32{firstUser + 7: 0, 1000: 1000} {
			if err := os.Chown(node, owner, owner); err != nil {
				t.Fatal(err)
			}
			end()
			var s unix.Stat_t
			if err := unix.Stat(node, &s); err != nil || s.Uid != want || s.Gid != want {
				t.Errorf("%s: the node of %d belongs to %d:%d, want %d (%v)",
					name, owner, s.Uid, s.Gid, want, err)
			}
		}
	}
}

func TestLeftoversNamesWhatNobodyOwns(t *testing.T) {
	h := host(t)
	c := start(t, h, "lost", nil)
	if left := h.Leftovers(map[string]bool{"lost": true}); len(left) != 0 {
		t.Errorf("a live sandbox is called left over: %v", left)
	}
	left := strings.Join(h.Leftovers(nil), "\n")
	if !strings.Contains(left, "cgroup fastiov/lost") ||
		!strings.Contains(left, fmt.Sprintf("process %d", c.proc.pid)) {
		t.Errorf("leftovers %q name neither cgroup nor process", left)
	}
	h.End(sandbox.Spec{ID: "lost"})
	h.End(sandbox.Spec{ID: "lost"})
	<-c.Done()
}
