package jail

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A room is a VMM's view of the host: a network without interfaces, no IPC objects, a host name,
// and the house with a /dev of its own. It is used once and disappears with its process.
type room struct{ network, ipc, uts, mounts *os.File }

func (r room) files() []*os.File { return []*os.File{r.network, r.ipc, r.uts, r.mounts} }

func (r room) close() {
	for _, f := range r.files() {
		f.Close()
	}
}

// Ahead names the threads that make rooms for later starts.
const Ahead = "fastiov-ahead"

// newRoom makes a room. It first lowers the priority of its thread to nice.
func (h house) newRoom(nice int) (r room, err error) {
	err = apart(func(spaces int) (err error) {
		if nice > 0 {
			// of this thread only; an error means that the room is made sooner than necessary
			_ = unix.Setpriority(unix.PRIO_PROCESS, 0, nice)
			if err := nameThread(Ahead); err != nil {
				return err
			}
		}
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		if err := unix.Setns(int(h.mounts.Fd()), unix.CLONE_NEWNS); err != nil {
			return os.NewSyscallError("setns", err)
		}
		const apart = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
		if err := unix.Unshare(apart); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		if err := furnish(); err != nil {
			return err
		}
		for _, space := range []struct {
			name string
			file **os.File
		}{{"net", &r.network}, {"ipc", &r.ipc}, {"uts", &r.uts}, {"mnt", &r.mounts}} {
			if *space.file, err = openSpace(spaces, space.name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.close()
		return room{}, fmt.Errorf("room for a VMM: %w", err)
	}
	return r, nil
}

func nameThread(name string) error {
	c, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	err = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(c)), 0, 0, 0)
	return os.NewSyscallError("prctl", err)
}

// furnish gives the thread's room its host name and its /dev. The launcher adds the VMM's VFIO
// group later.
func furnish() error {
	var todo script
	todo.do("sethostname", func() error { return unix.Sethostname([]byte("vmm")) })
	todo.do("setdomainname", func() error { return unix.Setdomainname(nil) })
	todo.mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC,
		"mode=0755,size=64k,nr_inodes=32")
	for _, dir := range []string{"/dev/vfio", vfDir} {
		todo.do("", func() error { return os.Mkdir(dir, 0o755) })
	}
	for path, device := range map[string]uint64{
		"/dev/null": unix.Mkdev(1, 3), "/dev/vfio/vfio": unix.Mkdev(10, 196),
	} {
		todo.do("mknod "+path, func() error {
			return unix.Mknod(path, unix.S_IFCHR|0o666, int(device))
		})
		todo.do("", func() error { return os.Chmod(path, 0o666) }) // whatever the umask
	}
	return todo.failed
}

// A stock holds rooms that were made ahead. A start that finds it empty makes its own room.
type stock struct {
	make   func(nice int) (room, error)
	rooms  chan room
	onPath atomic.Int64 // counts rooms that a start had to make
	stop   chan struct{}
	maker  sync.WaitGroup
}

func newStock(newRoom func(nice int) (room, error), size int, log *slog.Logger) *stock {
	s := &stock{make: newRoom, rooms: make(chan room, size), stop: make(chan struct{})}
	if size > 0 {
		s.maker.Go(func() { s.fill(log) })
	}
	return s
}

// stockable returns how many of size rooms may be kept: their files are at most a quarter of the
// files that this process may open.
func stockable(size int, mayOpen uint64) int {
	files := len(room{}.files())
	return int(min(uint64(size), mayOpen/4/uint64(files)))
}

// fill keeps the stock full at the lowest priority. If a room cannot be made, it tries again after
// a pause that grows.
func (s *stock) fill(log *slog.Logger) {
	const (
		idle     = 19
		shortest = time.Second
		longest  = time.Minute
	)
	pause := shortest
	for {
		r, err := s.make(idle)
		if err != nil {
			if pause == shortest {
				log.Warn("no room can be made ahead; each start makes its own meanwhile",
					"err", err)
			}
			select {
			case <-time.After(pause):
			case <-s.stop:
				return
			}
			pause = min(2*pause, longest)
			continue
		}
		if pause > shortest {
			log.Info("rooms are made ahead again")
		}
		pause = shortest
		select {
		case s.rooms <- r:
		case <-s.stop:
			r.close()
			return
		}
	}
}

func (s *stock) take() (room, error) {
	select {
	case r := <-s.rooms:
		return r, nil
	default:
		s.onPath.Add(1)
		return s.make(0)
	}
}

func (s *stock) close() {
	close(s.stop)
	s.maker.Wait()
	for {
		select {
		case r := <-s.rooms:
			r.close()
		default:
			return
		}
	}
}
