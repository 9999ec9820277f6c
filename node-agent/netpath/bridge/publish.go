package bridge

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/startup"
)

// Ports of the host that lead to sandboxes. A map of nftables leads there what comes from outside,
// and from the host itself by an address other than its loopback's, and nothing of other sandboxes.

// ports has the published ports of the host, so that nobody on the host listens there.
type ports struct {
	mu   sync.Mutex
	held map[startup.Publication]*os.File // of which the sandbox's port is left out
}

// of returns what a publication takes of the host.
func of(p startup.Publication) startup.Publication {
	return startup.Publication{Protocol: p.Protocol, HostPort: p.HostPort}
}

// take binds a port without listening, or says that another has it.
func (h *ports) take(p startup.Publication) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.held[of(p)] != nil {
		return startup.ErrTaken
	}
	kind := unix.SOCK_STREAM
	if p.Protocol == "udp" {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(p.HostPort)}); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EADDRINUSE) {
			return startup.ErrTaken
		}
		return os.NewSyscallError("bind", err)
	}
	if h.held == nil {
		h.held = map[startup.Publication]*os.File{}
	}
	h.held[of(p)] = os.NewFile(uintptr(fd), "port")
	return nil
}

func (h *ports) free(all ...startup.Publication) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range all {
		if file := h.held[of(p)]; file != nil {
			file.Close()
			delete(h.held, of(p))
		}
	}
}

// retake takes the ports that a former agent has published. One that somebody has by now leads to
// the sandbox as before.
func (b *Bridge) retake() {
	for number, all := range b.leases.published() {
		for _, p := range all {
			if err := b.taken.take(p); err != nil {
				b.Log.Warn("a published port", "port", p.HostPort, "of", b.portName(number),
					"err", err)
			}
		}
	}
}

// Publish implements startup.Publisher.
func (b *Bridge) Publish(l startup.Lease, p startup.Publication) error {
	b.writes.Lock()
	defer b.writes.Unlock()
	if err := b.taken.take(p); err != nil {
		return fmt.Errorf("%s port %d: %w", p.Protocol, p.HostPort, err)
	}
	err := b.leases.publish(l, p)
	if err == nil {
		if err = b.guard.write(); err == nil {
			return nil
		}
		err = errors.Join(err, b.leases.unpublish(l, p))
	}
	b.taken.free(p)
	return err
}

// withdraw closes what was published of a sandbox.
func (b *Bridge) withdraw(l startup.Lease) error {
	b.writes.Lock()
	defer b.writes.Unlock()
	if len(b.leases.leave(l)) == 0 {
		return nil
	}
	return b.guard.write()
}
