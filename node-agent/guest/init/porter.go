package main

import (
	"encoding/binary"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/door"
)

// Any process of the host may call the guest. A caller that has not proved to be the agent gets
// little memory and little time, and makes room for later callers. The agent needs two short
// messages, so it comes through, however many others call. If it is hung up on between its two
// messages, it is not welcomed and calls again.
const (
	strangers      = 64
	strangerTime   = 10 * time.Second
	strangerBuffer = 4 << 10   // bytes that the kernel takes of one before it is read
	agentBuffer    = 256 << 10 // vsock's default
)

// A porter lets nobody but the agent into the guest.
type porter struct {
	secret door.Secret

	mu      sync.Mutex
	waiting [strangers]*os.File // callers that have not proved themselves, the latest ones
	next    int
}

// admits reports whether the caller that arrived at place is the agent, and which port it wants.
// Nothing that a caller says before it has proved to be the agent is passed on. It still has to be
// welcomed, for which it has the rest of a stranger's time.
func (p *porter) admits(caller *os.File, place int) (port uint16, agent bool) {
	caller.SetDeadline(time.Now().Add(strangerTime))
	port, err := door.Admit(caller, p.secret)
	if !p.leave(place, caller) || err != nil {
		return 0, false
	}
	if raw, err := caller.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { bufferOf(int(fd), agentBuffer) })
	}
	return port, true
}

// arrive gives caller a place, and hangs up on the caller that has had that place for longest.
func (p *porter) arrive(caller *os.File) (place int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	place = p.next
	p.next = (p.next + 1) % strangers
	if former := p.waiting[place]; former != nil {
		former.Close()
	}
	p.waiting[place] = caller
	return place
}

// leave gives caller's place back; it is false if another has it by now.
func (p *porter) leave(place int, caller *os.File) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting[place] != caller {
		return false
	}
	p.waiting[place] = nil
	return true
}

// bufferOf bounds what the kernel takes for a vsock socket before it is read; connections that a
// listening socket accepts begin with its bound.
func bufferOf(fd int, bytes uint64) error {
	const bufferSize = 0 // SO_VM_SOCKETS_BUFFER_SIZE
	value := binary.NativeEndian.AppendUint64(nil, bytes)
	return unix.SetsockoptString(fd, unix.AF_VSOCK, bufferSize, string(value))
}
