package jail

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	firstUser = 1_900_000_000 // above every range that distributions, containers and systemd give out; valid as a vsock CID too
	slots     = 10_000
)

var lastSlot atomic.Int64 // where the search begins: the slot released longest ago is the likeliest to be free

// takeSlot returns a user that no living sandbox has, and the file that holds it as long as anyone has it open.
func takeSlot() (user int, slot *os.File, err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, fmt.Errorf("socket of a slot: %w", err)
	}
	for range slots {
		n := int(lastSlot.Add(1) % slots)
		err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("@fastiov/slot/%d", n)})
		if err == nil {
			return firstUser + n, os.NewFile(uintptr(fd), "slot"), nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			unix.Close(fd)
			return 0, nil, fmt.Errorf("slot %d: %w", n, err)
		}
	}
	unix.Close(fd)
	return 0, nil, fmt.Errorf("all %d slots are taken: end some sandboxes", slots)
}

func isUser(uid int) bool { return uid >= firstUser && uid < firstUser+slots }
