// Package filter makes the seccomp filter of a VMM: which system calls it may make, whatever else
// it is allowed.
//
// A build of QEMU that is known has a list in calls/, traced over what the driver does with it:
// these calls and no others. A program that is not known may make all but the dangerous ones, of
// which those that libraries try are refused with an error. Under both, a clone may make threads
// only; clone3 and io_uring_setup are absent, so that libraries do without; and the CID of a vsock
// stays what the agent has made it. What else is refused kills the process.
//
// No filter here has execve: the launcher, which has the last word before the VMM, lets its own
// pass, and it alone.
package filter

import (
	"bytes"
	"debug/elf"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

//go:embed calls
var lists embed.FS

// A Filter is made for one program.
type Filter struct {
	Calls []string // those that are allowed; nil: all but the dangerous ones
	Says  string   // what it is, for people
	code  []bpf.Instruction
}

// For makes the filter of the program at path.
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

// Known tells whether the program is one whose calls are known.
func (f Filter) Known() bool { return f.Calls != nil }

// Programs are those whose calls are known.
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

// A list is a file of calls/: words, of which the first two are "build" and the build ID of the
// program; # begins a comment.
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

// Where struct seccomp_data has what, and the ioctl by which a VMM would take another guest's CID.
const (
	number       = 0
	architecture = 4
	arguments    = 16

	setGuestCID   = 0x4008af60 // VHOST_VSOCK_SET_GUEST_CID
	newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
		unix.CLONE_NEWPID | unix.CLONE_NEWNET
)

// always is what holds under every filter. The kernel reads half of an argument of each of these
// calls, so half is compared.
func always() []bpf.Instruction {
	const (
		allowed = uint32(seccomp.ActionAllow)
		kill    = uint32(seccomp.ActionKillProcess)
		errno   = uint32(seccomp.ActionErrno)
	)
	load := func(offset uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: offset, Size: 4} }
	return []bpf.Instruction{
		load(architecture),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(arch.X86_64.ID), SkipTrue: 1},
		bpf.RetConstant{Val: kill},
		load(number),
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_IOCTL, SkipTrue: 4},
		load(arguments + 8),
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: setGuestCID, SkipTrue: 1},
		bpf.RetConstant{Val: errno}, // 0: done, as far as the VMM can see; it was, by the agent
		load(number),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SYS_IO_URING_SETUP, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE3, SkipTrue: 1},
		bpf.RetConstant{Val: errno | uint32(unix.ENOSYS)},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLONE, SkipTrue: 4},
		load(arguments),
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: newNamespaces, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.CLONE_THREAD, SkipTrue: 1},
		bpf.RetConstant{Val: kill},
	}
}

// Bytes are the instructions as the kernel takes them.
func (f Filter) Bytes() ([]byte, error) {
	raw, err := bpf.Assemble(f.code)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = binary.Write(&b, binary.LittleEndian, raw)
	return b.Bytes(), err
}

// Name is the name of a system call of this architecture.
func Name(call int) string {
	if name, known := arch.X86_64.SyscallNumbers[call]; known {
		return name
	}
	return "unknown"
}

// buildID is what a linker calls the program it has made, by its content; empty where it did not.
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
