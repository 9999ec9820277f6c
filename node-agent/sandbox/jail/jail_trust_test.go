//go:build trust

package jail

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/mdlayher/vsock"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/testbed"
)

func init() { runTests = func(m *testing.M) { testbed.Main(m) } }

// A measure is a part of the confinement; the function removes it.
type measure func(*attack, *order)

// The measures that the rows below remove.
var (
	filterOf  measure = func(a *attack, o *order) { o.filter = a.allowAll }
	networkOf measure = func(a *attack, o *order) { o.room.network = a.ours("net") }
	mountsOf  measure = func(a *attack, o *order) { o.room.mounts = a.ours("mnt") }
	pidsOf    measure = func(_ *attack, o *order) { o.flags = 0 }
	sizeOf    measure = limitOf(unix.RLIMIT_FSIZE)
	coreOf    measure = limitOf(unix.RLIMIT_CORE)
)

func limitOf(resource int) measure {
	return func(_ *attack, o *order) {
		for i := range o.limits {
			if o.limits[i].resource == resource {
				o.limits[i].value = 1 << 40
			}
		}
	}
}

// A row is an attack, the error with which the whole jail refuses it, and its result without some
// measures: done, or the error of another rule of the kernel.
type row struct {
	name, try string
	jailed    string // regular expressions
	off       []off
}

type off struct {
	measures []measure
	outcome  string
	rule     string // the kernel's other rule, if the attack fails without the measures
}

const done = "^done"

func without(outcome, rule string, measures ...measure) off { return off{measures, outcome, rule} }

func table(a *attack) []row {
	killed := func(call string) string { return `^killed by seccomp: system call ` + call + ` ` }
	// by the filter, since the program is unknown
	const notPermitted = "^error: .*operation not permitted$"
	call := func(number int, args ...int) string {
		return "call " + strings.Trim(fmt.Sprint(append([]int{number}, args...)), "[]")
	}
	control := off{[]measure{filterOf}, done, ""}
	if wire.ControlPort < 1024 {
		control = without("permission denied",
			"a port below 1024 needs CAP_NET_BIND_SERVICE", filterOf)
	}
	return []row{
		{"our API with the well-known key", "get " + a.api, notPermitted, []off{
			without("connection refused|unreachable",
				"another network namespace has another loopback", filterOf),
			without(`^done \["guest"\]`, "", filterOf, networkOf)}},
		{"another guest over vsock", fmt.Sprintf("dial 1 %d", a.port), notPermitted, []off{without(done, "", filterOf)}},
		{"the control port", fmt.Sprintf("bind %d", wire.ControlPort), notPermitted, []off{control}},
		{"the agent in /proc", fmt.Sprintf("read /proc/%d/cmdline", os.Getpid()), "no such file", []off{without("^done true", "", mountsOf)}},
		{"a file of the host", "read /etc/passwd", "no such file", []off{without("^done true", "", mountsOf)}},
		{"a Unix socket", call(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM), notPermitted, []off{without(done, "", filterOf)}},
		{"a raw packet socket", "family 17", notPermitted, []off{without("not permitted", "CAP_NET_RAW is needed", filterOf)}},
		{"a netlink socket", "family 16", notPermitted, []off{without(done, "", filterOf)}},
		{"a socket of the kernel's ciphers", "family 38", notPermitted, []off{without("done|not supported", "the module may be absent", filterOf)}},
		{"ptrace", call(unix.SYS_PTRACE, unix.PTRACE_ATTACH, os.Getpid()), killed("ptrace"), []off{
			without("no such process", "another pid namespace has no such number", filterOf),
			without("not permitted", "another user's process", filterOf, pidsOf)}},
		{"bpf", call(unix.SYS_BPF, unix.BPF_MAP_CREATE), killed("bpf"), []off{without("not permitted", "CAP_BPF is needed", filterOf)}},
		{"io_uring", call(unix.SYS_IO_URING_SETUP, 1), "not implemented", []off{without(done, "", filterOf)}},
		{"keyctl", call(unix.SYS_KEYCTL, 0, -3, 1), killed("keyctl"), []off{without(done, "", filterOf)}},
		{"userfaultfd", call(unix.SYS_USERFAULTFD, 1), killed("userfaultfd"), []off{without(done, "", filterOf)}},
		{"SysV shared memory", call(unix.SYS_SHMGET, 0, 4096, 0o1600), killed("shmget"), []off{without(done, "", filterOf)}},
		{"a mount", call(unix.SYS_FSOPEN, 0, 0), killed("fsopen"), []off{without("not permitted", "CAP_SYS_ADMIN is needed", filterOf)}},
		{"a user namespace", call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER), killed("unshare"), []off{
			without("invalid argument", "only a process of one thread may", filterOf)}},
		// by the launcher's own rule, which is never removed
		{"another program", "execute /proc/self/exe", killed("execve"), nil},
		{"another program, otherwise", "executeat /proc/self/exe", killed("execveat"), []off{without(done, "", filterOf)}},
		{"another VFIO group", "open " + a.group, "no such file", []off{without("permission denied", "the node is root's", mountsOf)}},
		{"a device node", "mknod /dev/mine", "permission denied|not permitted", []off{without("permission denied|not permitted", "CAP_MKNOD is needed", mountsOf)}},
		{"a file in the room", "make /dev/mine", "permission denied", []off{without("permission denied", "/dev is root's", mountsOf)}},
		{"filling /run by a log", "fill", "file too large", []off{without(done, "", sizeOf)}},
		{"another's MAC for its tap", "tap", notPermitted, []off{without(done, "", filterOf)}},
		{"a higher limit", "raise", "not permitted", []off{without("not permitted", "CAP_SYS_RESOURCE is needed", filterOf)}},
		{"root again", "become", "not permitted", []off{without("not permitted", "CAP_SETUID is needed", filterOf)}},
		{"forking without end", "breed", killed("fork"), []off{without("after 1..: resource temporarily", "pids.max of its cgroup", filterOf)}},
		{"a core dump", "crash", "^ended: signal: segmentation fault$", []off{without(`\(core dumped\)$`, "", coreOf)}},
		// it only looks done; see TestTheCIDStays
		{"another guest's CID", fmt.Sprintf("cid %d", otherCID), done, nil},
	}
}

// An attack holds what the rows of the table of attacks use on the host.
type attack struct {
	*testing.T
	host     *Host
	api      string
	port     uint32 // where "another guest" listens
	group    string
	allowAll *os.File
	opened   []*os.File
}

func (a *attack) ours(space string) *os.File {
	f, err := os.Open("/proc/self/ns/" + space)
	if err != nil {
		a.Fatal(err)
	}
	a.opened = append(a.opened, f)
	return f
}

func prepare(t *testing.T) *attack {
	a := &attack{T: t, group: "/dev/vfio/9999"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c := config(t)
	// where any user may run it, even outside a room
	c.BestEffort, c.Rooms, c.Program = false, 8, "/usr/local/bin/attack"
	must(os.MkdirAll("/usr/local/bin", 0o755))
	must(exec.Command("cp", os.Args[0], c.Program).Run())
	t.Cleanup(func() { os.Remove(c.Program) })
	var err error
	a.host, err = Open(c)
	must(err)
	t.Cleanup(a.host.Close)
	var stop func()
	a.api, stop, err = api()
	must(err)
	t.Cleanup(stop)
	must(exec.Command("modprobe", "-a", "vsock_loopback", "vhost_vsock").Run())
	guest, err := vsock.ListenContextID(unix.VMADDR_CID_LOCAL, 0, nil)
	must(err)
	t.Cleanup(func() { guest.Close() })
	a.port = guest.Addr().(*vsock.Addr).Port
	_ = os.Mkdir("/dev/vfio", 0o755)
	must(unix.Mknod(a.group, unix.S_IFCHR|0o600, int(unix.Mkdev(245, 250))))
	t.Cleanup(func() { os.Remove(a.group) })
	fd, err := unix.MemfdCreate("allow", unix.MFD_CLOEXEC)
	must(err)
	a.allowAll = os.NewFile(uintptr(fd), "allow")
	t.Cleanup(func() { a.allowAll.Close() })
	must(binary.Write(a.allowAll, binary.LittleEndian,
		unix.SockFilter{Code: unix.BPF_RET, K: 0x7fff0000}))
	for file, value := range map[string]string{
		"core_pattern": "|/usr/bin/dd of=/dev/null", // a program that takes cores
		// more calls are refused here than the kernel logs at a time by default
		"printk_ratelimit": "0",
	} {
		must(os.WriteFile("/proc/sys/kernel/"+file, []byte(value), 0))
	}
	return a
}

const otherCID = 1_900_009_999

// try starts a program in the VMM's place without some measures, lets it try what, and returns the
// result.
func (a *attack) try(what string, given *os.File, measures ...measure) string {
	a.Helper()
	a.host.relax = func(o *order) {
		for _, m := range measures {
			m(a, o)
		}
	}
	c, err := a.host.Build(sandbox.Spec{ID: "attack"}, 128)
	if err != nil {
		a.Fatal(err)
	}
	defer c.Close()
	cmd := &exec.Cmd{Args: []string{os.Args[0], probeName}, ExtraFiles: []*os.File{given}}
	cmd.Stdin = strings.NewReader(what + "\n")
	said, err := os.CreateTemp(a.TempDir(), "said")
	if err != nil {
		a.Fatal(err)
	}
	defer said.Close()
	cmd.Stdout, cmd.Stderr = said, said
	if err := c.Start(cmd, 64); err != nil {
		a.Fatal(err)
	}
	<-c.Done()
	for _, f := range a.opened {
		f.Close()
	}
	a.opened = nil
	switch answer := strings.TrimSpace(read(said)); {
	case strings.HasPrefix(c.How(), BySeccomp):
		return c.How()
	case strings.HasPrefix(answer, "error: "):
		return answer
	case c.How() != "exit status 0" && c.How() != "signal: killed":
		return "ended: " + c.How()
	default:
		return "done " + answer
	}
}

func read(f *os.File) string {
	b, _ := os.ReadFile(f.Name())
	return string(b)
}

// quick names an environment variable: if it is set, the rows are only tried with the whole jail.
const quick = "FASTIOV_TEST_TRUST_QUICK"

// TestAProgramInTheVMMsPlace tries what a broken VMM could try.
func TestAProgramInTheVMMsPlace(t *testing.T) {
	if testing.Short() {
		t.Setenv(quick, "1")
	}
	testbed.Inside(t, testbed.Needs{Env: []string{quick}}, func(t *testing.T) {
		a := prepare(t)
		for _, r := range table(a) {
			expect := func(outcome, want, how string) {
				t.Helper()
				if !regexp.MustCompile(want).MatchString(outcome) {
					t.Errorf("%s, %s: %q, want %q", r.name, how, outcome, want)
				}
				t.Logf("%-34s %-28s %s", r.name, how, outcome)
			}
			given := func() *os.File {
				if r.try == "tap" {
					return tap(t)
				}
				f, err := os.Create(t.TempDir() + "/log")
				if err != nil {
					t.Fatal(err)
				}
				return f
			}
			if strings.HasPrefix(r.try, "cid") {
				a.theCIDStays(r.try)
				continue
			}
			expect(a.try(r.try, given()), r.jailed, "jailed")
			if os.Getenv(quick) != "" {
				continue
			}
			for _, o := range r.off {
				how := fmt.Sprintf("without %d of it", len(o.measures))
				if o.rule != "" {
					how += " (" + o.rule + ")"
				}
				expect(a.try(r.try, given(), o.measures...), o.outcome, how)
			}
		}
	})
}

// tap returns the file of a tap, which its test closes.
func tap(t *testing.T) *os.File {
	t.Helper()
	link := &netlink.Tuntap{LinkAttrs: netlink.NewLinkAttrs(), Queues: 1,
		Mode: netlink.TUNTAP_MODE_TAP, NonPersist: true, Flags: netlink.TUNTAP_NO_PI}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { link.Fds[0].Close() })
	return link.Fds[0]
}

// theCIDStays shows that a VMM with a vsock that sets another CID sees success, but keeps its own
// CID.
func (a *attack) theCIDStays(try string) {
	for _, c := range []struct {
		measures []measure
		free     bool
	}{{nil, true}, {[]measure{filterOf}, false}} {
		held, err := os.OpenFile("/dev/vhost-vsock", os.O_RDWR, 0)
		if err != nil {
			a.Fatal(err)
		}
		if outcome := a.try(try, held, c.measures...); !strings.HasPrefix(outcome, "done") {
			a.Errorf("another guest's CID: %s", outcome)
		}
		other, err := os.OpenFile("/dev/vhost-vsock", os.O_RDWR, 0)
		if err != nil {
			a.Fatal(err)
		}
		if err := setCID(int(other.Fd()), otherCID); (err == nil) != c.free {
			a.Errorf("another guest's CID, without %d measures: it is free: %t (%v)",
				len(c.measures), err == nil, err)
		}
		other.Close()
		held.Close()
	}
}
