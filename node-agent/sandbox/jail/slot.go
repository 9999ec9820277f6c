package jail

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// Above every range that distributions, containers and systemd give out; valid as a vsock CID.
	firstUser = 1_900_000_000
	slots     = 10_000
	slotDir   = "/run/fastiov/slot" // only root can write there, so nobody else can take a slot
)

// A slot is a user that no other living sandbox of this host has. It is a locked file that is open
// in the agent and in the process: the kernel unlocks it when both have gone.
type slot struct {
	user int
	file *os.File
}

// The search begins after lastSlot: the slot that was released longest ago is most likely free.
var lastSlot atomic.Int64

// takeSlot returns a slot whose user is not known to live. A process may close its slot file and
// live on, so the lock alone is not enough.
func takeSlot(lives func(user int) bool) (*slot, error) {
	if err := os.MkdirAll(filepath.Dir(slotDir), 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(slotDir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	for range slots {
		user := firstUser + int(lastSlot.Add(1)%slots)
		if lives(user) {
			continue
		}
		if s, err := lockSlot(user); s != nil || err != nil {
			return s, err
		}
	}
	return nil, fmt.Errorf("all %d slots are taken: end some sandboxes", slots)
}

// lockSlot returns nil if the slot of user is taken.
func lockSlot(user int) (*slot, error) {
	path := filepath.Join(slotDir, strconv.Itoa(user-firstUser))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return nil, err
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case err == unix.EWOULDBLOCK:
		f.Close()
		return nil, nil
	case err != nil:
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var locked, named unix.Stat_t
	if unix.Fstat(int(f.Fd()), &locked) != nil || unix.Stat(path, &named) != nil ||
		locked.Ino != named.Ino {
		f.Close() // its former owner has just removed it
		return nil, nil
	}
	return &slot{user, f}, nil
}

// release makes the slot free. The slot's process must have gone.
func (s *slot) release() {
	_ = os.Remove(filepath.Join(slotDir, strconv.Itoa(s.user-firstUser)))
	s.file.Close()
}

func isUser(uid int) bool { return uid >= firstUser && uid < firstUser+slots }
