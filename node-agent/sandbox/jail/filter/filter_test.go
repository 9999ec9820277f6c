package filter

import (
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
	"gopkg.in/yaml.v3"

	"github.com/fastiov/fastiov"
)

const (
	allowed = 0x7fff0000
	killed  = 0x80000000
	refused = 0x00050000 // plus an errno in its lower half
)

// all returns every filter: those of the lists and the one for unknown programs.
func all(t *testing.T) map[string]Filter {
	t.Helper()
	entries, err := lists.ReadDir("calls")
	if err != nil {
		t.Fatal(err)
	}
	filters := map[string]Filter{}
	for _, e := range entries {
		text, err := lists.ReadFile("calls/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if filters[e.Name()], err = allow(parse(string(text))); err != nil {
			t.Fatal(err)
		}
	}
	if filters["unknown"], err = denyAll(""); err != nil {
		t.Fatal(err)
	}
	return filters
}

// verdict returns what the kernel would do. The machine that runs the filter here reads big-endian,
// so the data is big-endian.
func verdict(t *testing.T, f Filter, audit uint32, call int, args ...uint64) uint32 {
	t.Helper()
	vm, err := bpf.NewVM(f.code)
	if err != nil {
		t.Fatal(err)
	}
	data := binary.BigEndian.AppendUint32(nil, uint32(call))
	data = binary.BigEndian.AppendUint32(data, audit)
	data = append(data, make([]byte, 8)...)
	for i := range 6 {
		arg := uint64(0)
		if i < len(args) {
			arg = args[i]
		}
		data = binary.BigEndian.AppendUint32(data, uint32(arg))
		data = binary.BigEndian.AppendUint32(data, uint32(arg>>32))
	}
	result, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(result)
}

func TestDangerousCallsAreRefused(t *testing.T) {
	for name, f := range all(t) {
		for _, call := range dangerous {
			if got := verdict(t, f, uint32(arch.X86_64.ID),
				arch.X86_64.SyscallNames[call]); got != killed {
				t.Errorf("%s: %s: %#x", name, call, got)
			}
		}
		want := uint32(killed)
		if !f.Known() { // a library of an unknown program may try them
			want = refused | uint32(unix.EPERM)
		}
		for _, call := range tried {
			for first := range uint64(64) { // the family of a socket
				if got := verdict(t, f, uint32(arch.X86_64.ID),
					arch.X86_64.SyscallNames[call], first); got != want {
					t.Errorf("%s: %s(%d): %#x, want %#x", name, call, first, got, want)
				}
			}
		}
	}
}

func TestArgumentsDecide(t *testing.T) {
	const x32 = 0x40000000
	thread := uint64(
		unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD)
	for name, f := range all(t) {
		for what, c := range map[string]struct {
			audit arch.AuditArch
			call  int
			args  []uint64
			want  uint32
		}{
			"a read": {arch.X86_64.ID, unix.SYS_READ, nil, allowed},
			"a thread": {arch.X86_64.ID, unix.SYS_CLONE,
				[]uint64{thread}, allowed},
			"a process": {arch.X86_64.ID, unix.SYS_CLONE,
				[]uint64{uint64(unix.SIGCHLD)}, killed},
			"a thread in a namespace": {arch.X86_64.ID, unix.SYS_CLONE,
				[]uint64{thread | unix.CLONE_NEWUSER}, killed},
			"clone3": {arch.X86_64.ID, unix.SYS_CLONE3, nil,
				refused | uint32(unix.ENOSYS)},
			"io_uring": {arch.X86_64.ID, unix.SYS_IO_URING_SETUP, nil,
				refused | uint32(unix.ENOSYS)},
			"an ioctl": {arch.X86_64.ID, unix.SYS_IOCTL,
				[]uint64{3, 0xae80}, allowed},
			"a CID": {arch.X86_64.ID, unix.SYS_IOCTL,
				[]uint64{3, setGuestCID}, refused},
			"a CID with bits that are cut": {arch.X86_64.ID, unix.SYS_IOCTL,
				[]uint64{3, 1<<40 | setGuestCID}, refused},
			"a tap's MAC": {arch.X86_64.ID, unix.SYS_IOCTL,
				[]uint64{3, unix.SIOCSIFHWADDR}, refused | uint32(unix.EPERM)},
			"a tap that stays": {arch.X86_64.ID, unix.SYS_IOCTL,
				[]uint64{3, 1<<40 | unix.TUNSETPERSIST}, refused | uint32(unix.EPERM)},
			"what a tap does for its guest": {arch.X86_64.ID, unix.SYS_IOCTL,
				[]uint64{3, unix.TUNSETOFFLOAD}, allowed},
			"another architecture's read": {arch.I386.ID, 3, nil, killed},
			"another ABI's read": {arch.X86_64.ID, x32 | unix.SYS_READ, nil,
				refused | uint32(unix.ENOSYS)},
		} {
			if got := verdict(t, f, uint32(c.audit), c.call, c.args...); got != c.want {
				t.Errorf("%s: %s: %#x, want %#x", name, what, got, c.want)
			}
		}
	}
}

func TestListsAreShort(t *testing.T) {
	const most = 90
	for name, f := range all(t) {
		if len(f.Calls) > most {
			t.Errorf("%s allows %d calls, want %d or fewer", name, len(f.Calls), most)
		}
		if sorted := slices.Compact(
			slices.Sorted(slices.Values(f.Calls))); len(sorted) != len(f.Calls) {
			t.Errorf("%s names a call twice", name)
		}
	}
}

func TestTheQEMUThatIsFetchedHasAList(t *testing.T) {
	var v struct {
		Host struct{ Pins map[string]string }
	}
	if err := yaml.Unmarshal(fastiov.VersionsYAML, &v); err != nil {
		t.Fatal(err)
	}
	_, version, _ := strings.Cut(v.Host.Pins["qemu"], ":") // without Debian's epoch
	version, _, _ = strings.Cut(version, "+")
	programs, err := Programs()
	if err != nil || !slices.Contains(programs, "QEMU-"+version) {
		t.Errorf("versions.yaml pins QEMU %s; there are lists for %v (%v)", version, programs, err)
	}
}

func TestAnUnknownProgramGetsTheDenyList(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f, err := For(self)
	if err != nil || f.Known() || f.Says != "unknown program: deny list" {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := For("/etc/passwd"); err == nil {
		t.Error("a filter for what is no program")
	}
}
