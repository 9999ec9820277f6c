// Package filter makes the seccomp filter of a VMM, which determines the system calls that it may
// make, whatever else it may do.
//
// A known build of QEMU has a list in calls/, which was traced while the driver used it: it may
// make these calls and no others. An unknown program may make all calls except the dangerous ones;
// those of them that libraries try return an error. Both filters allow a clone only for threads,
// hide clone3 and io_uring_setup, which libraries can do without, and keep the CID of a vsock and
// the host's end of a tap as the agent has set them. Any other refused call kills the process.
//
// No filter here allows execve: the launcher, which runs last before the VMM, adds a rule that
// allows its own.
package filter

import (
	"bytes"
	"debug/elf"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

//go:embed calls
var lists embed.FS

// A Filter is a filter for one program.
type Filter struct {
	Calls []string // the allowed calls; nil: all except the dangerous ones
	Says  string   // a description for people
	code  []bpf.Instruction
}

// For returns the filter of the program at path.
func For(path string) (Filter, error) {
	build, err := buildID(path)
	if err != nil {
		return Filter{}, err
	}
	known, err := known()
	if err != nil {
		return Filter{}, err
	}
	for _, l := range known {
		if build != "" && l.build == build {
			return allow(l)
		}
	}
	return denyAll("unknown program: deny list")
}

// Known reports whether the program's calls are known.
func (f Filter) Known() bool { return f.Calls != nil }

// Programs returns the programs whose calls are known.
func Programs() (names []string, err error) {
	known, err := known()
	for _, l := range known {
		names = append(names, l.program)
	}
	return names, err
}

func known() (all []list, err error) {
	entries, err := lists.ReadDir("calls")
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		text, err := lists.ReadFile("calls/" + entry.Name())
		if err != nil {
			return nil, err
		}
		all = append(all, parse(string(text)))
	}
	return all, nil
}

// A list is a file of calls/. It consists of words, of which the first two are "build" and the
// program's build ID; # begins a comment.
type list struct {
	program, build string
	calls          []string
}

func parse(text string) (l list) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		switch {
		case len(words) == 3 && words[0] == "build":
			l.program, l.build = words[1], words[2]
		default:
			l.calls = append(l.calls, words...)
		}
	}
	return l
}

func allow(l list) (Filter, error) {
	policy := seccomp.Policy{DefaultAction: seccomp.ActionKillProcess,
		Syscalls: []seccomp.SyscallGroup{{Names: l.calls, Action: seccomp.ActionAllow}}}
	says := fmt.Sprintf("%s: allow list (%d calls)", l.program, len(l.calls))
	return assemble(policy, l.calls, says)
}

func denyAll(says string) (Filter, error) {
	policy := seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{
		{Names: dangerous, Action: seccomp.ActionKillProcess},
		{Names: tried, Action: seccomp.ActionErrno}, // EPERM
	}}
	return assemble(policy, nil, says)
}

func assemble(policy seccomp.Policy, calls []string, says string) (Filter, error) {
	code, err := policy.Assemble()
	if err != nil {
		return Filter{}, fmt.Errorf("filter of system calls: %w", err)
	}
	return Filter{Calls: calls, Says: says, code: append(always(), code...)}, nil
}

// The offsets in struct seccomp_data, and the ioctl by which a VMM would take another guest's CID.
const (
	number       = 0
	architecture = 4
	arguments    = 16

	setGuestCID   = 0x4008af60 // VHOST_VSOCK_SET_GUEST_CID
	newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS |
		unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
)

// ofTap are the ioctls by which who has the file of a tap, whatever his rights, changes the host's
// end: a bridge would deliver to it what is for the MAC that it is given, it would outlive its
// sandbox, and the kernel's log would be full of it.
var ofTap = []uint32{unix.SIOCSIFHWADDR, unix.TUNSETPERSIST, unix.TUNSETOWNER, unix.TUNSETGROUP,
	unix.TUNSETLINK, unix.TUNSETDEBUG}

// always returns the rules of every filter. The kernel reads only half of an argument of each of
// these calls, so only that half is compared.
func always() []bpf.Instruction {
	const (
		allowed = uint32(seccomp.ActionAllow)
		kill    = uint32(seccomp.ActionKillProcess)
		errno   = uint32(seccomp.ActionErrno)
	)
	load := func(offset uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: offset, Size: 4} }
	ioctls := []bpf.Instruction{
		load(arguments + 8),
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: setGuestCID, SkipTrue: 1},
		bpf.RetConstant{Val: errno}, // 0: the VMM sees success; the agent has done it already
	}
	for _, request := range ofTap {
		ioctls = append(ioctls, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: request, SkipTrue: 1},
			bpf.RetConstant{Val: errno | uint32(unix.EPERM)})
	}
	return slices.Concat([]bpf.Instruction{
		load(architecture),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(arch.X86_64.ID), SkipTrue: 1},
		bpf.RetConstant{Val: kill},
		load(number),
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_IOCTL, SkipTrue: uint8(len(ioctls))},
	}, ioctls, []bpf.Instruction{
		load(number),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_IO_URING_SETUP, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE3, SkipTrue: 1},
		bpf.RetConstant{Val: errno | uint32(unix.ENOSYS)},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE, SkipTrue: 4},
		load(arguments),
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: newNamespaces, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.CLONE_THREAD, SkipTrue: 1},
		bpf.RetConstant{Val: kill},
	})
}

// Bytes returns the instructions in the kernel's format.
func (f Filter) Bytes() ([]byte, error) {
	raw, err := bpf.Assemble(f.code)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = binary.Write(&b, binary.LittleEndian, raw)
	return b.Bytes(), err
}

// Name returns the name of a system call of this architecture.
func Name(call int) string {
	if name, known := arch.X86_64.SyscallNumbers[call]; known {
		return name
	}
	return "unknown"
}

// buildID returns the ID that a linker computed from the program's content, or "" if it did not.
func buildID(path string) (string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	section := f.Section(".note.gnu.build-id")
	if section == nil {
		return "", nil
	}
	note, err := section.Data()
	const head = 16 // three sizes and "GNU\0"
	if err != nil || len(note) <= head {
		return "", err
	}
	return hex.EncodeToString(note[head:]), nil
}
