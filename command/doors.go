package command

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// The doors of an invoker are its listeners, each named for the flag that has its address. If the
// invoker is a process of its own, `up` opens them and has it inherit them. So a port below 1024
// needs no privilege there, and a call that comes while the process is started again waits for it.
const userDoor = "user" // for `fastiov user`

// nobodyElse is the group of a socket that is for its owner and root alone.
const nobodyElse = 0

// A door is a listener that another process can inherit.
type door struct {
	name string
	net.Listener
}

type doors []door

// open adds the door at address, if there is one.
func (d *doors) open(what, name, address string) error {
	if address == "" {
		return nil
	}
	l, err := openDoor(what, name, address)
	if err == nil {
		*d = append(*d, door{name, l})
	}
	return err
}

func (d doors) close() {
	for _, door := range d {
		door.Close()
	}
}

// files returns the doors as files to be inherited; the caller closes them.
func (d doors) files() (files []*os.File, err error) {
	for _, door := range d {
		f, err := door.Listener.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	return files, nil
}

// openDoor returns the listener for the flag of that name: one that was inherited, else a new one
// at address.
func openDoor(what, name, address string) (net.Listener, error) {
	if l := inheritedDoors()[name]; l != nil {
		return l, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; choose another address with --%s", what, err, name)
	}
	return l, nil
}

// isAddress refuses what no door can be at. An empty address is nowhere.
func isAddress(text string) error {
	if text == "" {
		return nil
	}
	if _, port, err := net.SplitHostPort(text); err != nil || port == "" {
		return fmt.Errorf("%q is no address; it must be HOST:PORT", text)
	}
	return nil
}

// isAddressOrSocket allows the path of a Unix socket as well.
func isAddressOrSocket(text string) error {
	if filepath.IsAbs(text) {
		return nil
	}
	return isAddress(text)
}

// openUserDoor listens for `fastiov user`.
func openUserDoor(runDir string, group int) (net.Listener, error) {
	if l := inheritedDoors()[userDoor]; l != nil {
		return l, nil
	}
	return listenLocal(filepath.Join(runDir, invokerSocket), group)
}

// inheritedDoors returns the listeners that this process was started with, by name.
var inheritedDoors = sync.OnceValue(func() map[string]net.Listener {
	found := map[string]net.Listener{}
	for n, name := range inherited()[1:] {
		fd := firstInherited + 1 + n
		if name == userDoor {
			// The kernel names the process that called listen last as the process behind a Unix
			// socket.
			_ = unix.Listen(fd, unix.SOMAXCONN)
		}
		f := os.NewFile(uintptr(fd), name)
		if l, err := net.FileListener(f); err == nil {
			found[name] = l
		}
		f.Close()
	}
	return found
})

// inheritance is the environment variable that names the files that a process has inherited from
// firstInherited on: its leash, and its doors.
const (
	inheritance    = "FASTIOV_INHERITED"
	firstInherited = 4
)

// inherited returns the names of this process's inherited files; the first is the leash, and empty
// without one.
func inherited() []string { return strings.Split(os.Getenv(inheritance), ",") }

// listenLocal listens on a Unix socket that only this user, root and a group can open, from the
// first moment.
func listenLocal(socket string, group int) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := listenAlone(socket)
	if err != nil || group == nobodyElse {
		return l, err
	}
	err = os.Chown(socket, -1, group)
	if err == nil {
		err = os.Chmod(socket, 0o660)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func listenAlone(socket string) (net.Listener, error) {
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	return net.Listen("unix", socket)
}
