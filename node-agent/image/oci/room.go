package oci

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Rooms has a Room for each host that the layers of an image come from: what a host sends instead
// of them takes nothing from those that another sends.
type Rooms struct {
	most   int64
	mu     sync.Mutex
	of     map[*host]*Room
	closed bool
}

// NewRooms returns rooms of so many bytes each.
func NewRooms(most int64) *Rooms { return &Rooms{most: most, of: map[*host]*Room{}} }

// Close ends this process's use of the rooms.
func (r *Rooms) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, room := range r.of {
		room.Close()
	}
}

// roomFor returns the room of what a host sends.
func (r *Rooms) roomFor(from *host) (room *Room, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errors.New("the pull that this layer was fetched for has ended")
	}
	if room = r.of[from]; room == nil {
		if room, err = NewRoom(r.most); err == nil {
			r.of[from] = room
		}
	}
	return room, err
}

// A Room bounds what the layers of an image unpack to, all together, while each has a process of
// its own. It is an empty file, whose offset all who were handed it share: that is what they took.
type Room struct {
	file *os.File
	most int64
	mine *os.File // of a process: its offset is what this one took, for back
}

// NewRoom returns a room of so many bytes.
func NewRoom(most int64) (*Room, error) {
	fd, err := unix.MemfdCreate("room", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("the room of an image's layers: %w", err)
	}
	// what a process wrote to it would stay after that was ended for its memory
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS,
		unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("the room of an image's layers: %w", err)
	}
	return &Room{file: os.NewFile(uintptr(fd), "room"), most: most}, nil
}

// Close ends this process's use of the room.
func (r *Room) Close() { r.file.Close() }

// Take takes n bytes, or fails where so many are not left.
func (r *Room) Take(n int64) error {
	taken, err := r.file.Seek(n, io.SeekCurrent)
	if err != nil {
		return ours(fmt.Errorf("the room of an image's layers: %w", err))
	}
	if taken > r.most {
		_, _ = r.file.Seek(-n, io.SeekCurrent) // for another attempt
		return refuse(TooLarge, "its layers have more than %d MB", r.most>>20)
	}
	if r.mine != nil {
		_, err = r.mine.Seek(n, io.SeekCurrent)
	}
	return ours(err)
}

// back gives back what a process took that came to nothing: there may be another attempt.
func (r *Room) back(mine *os.File) {
	if took, err := mine.Seek(0, io.SeekCurrent); err == nil {
		_, _ = r.file.Seek(-min(took, r.most), io.SeekCurrent)
	}
}

// share returns the room for a process that is about to start. A pull may end, and close its room,
// while another still waits for a layer of it.
func (r *Room) share() (*os.File, error) {
	raw, err := r.file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	if ended := raw.Control(func(of uintptr) {
		fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0)
	}); ended != nil {
		return nil, ended
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), r.file.Name()), nil
}

// A taker writes what there is room for.
type taker struct {
	io.Writer
	*Room
}

func (t taker) Write(b []byte) (int, error) {
	if err := t.Take(int64(len(b))); err != nil {
		return 0, err
	}
	return t.Writer.Write(b)
}
