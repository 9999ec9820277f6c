package command

import (
	"os"
	"sync/atomic"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// readyFD is inherited by a process that another one waits for. The line "ready" on it says that
// the process is ready; its end without that line says that it is not.
const readyFD = "FASTIOV_READY_FD"

// A parent waits for this process. fd is where the parent listens, or -1 if there is none (any
// more).
type parent struct{ fd int }

var waiting = func() *parent {
	if os.Getenv(readyFD) == "" {
		return &parent{-1}
	}
	return &parent{3}
}()

// serves is set once this process serves.
var serves atomic.Bool

// tellParent says how far this process is. After ready it has nothing more to say.
func tellParent(word string) {
	if word == ready {
		serves.Store(true)
		tellManager(daemon.SdNotifyReady, "it serves")
	}
	waiting.tell(word)
}

// tellManager tells the service manager that started this process, if one did, what it has come to.
func tellManager(state, status string) {
	_, _ = daemon.SdNotify(false, state+"\nSTATUS="+status) // nothing depends on its hearing
}

func (p *parent) tell(word string) {
	if p.fd < 0 {
		return
	}
	_, _ = unix.Write(p.fd, []byte(word+"\n"))
	if word == ready {
		unix.Close(p.fd)
		p.fd = -1 // the number may be another file's next
	}
}
