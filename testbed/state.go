package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/procfs"
)

// A dir is the state directory of one testbed:
//
//	lock           held while the testbed is brought up or down
//	host.json      the record of its QEMU; the testbed exists if and only if that process lives
//	key            the private key that opens the host
//	console.log    the host's console, kept after its end
//	qemu.log       QEMU's own messages
//	qmp            QEMU's control socket
//	wire0.pcap …   the traffic of each NIC
//	share/         the host's /share
type dir string

func (d dir) lock() string           { return filepath.Join(string(d), "lock") }
func (d dir) record() string         { return filepath.Join(string(d), "host.json") }
func (d dir) key() string            { return filepath.Join(string(d), "key") }
func (d dir) qemuLog() string        { return filepath.Join(string(d), "qemu.log") }
func (d dir) qmpSocket() string      { return filepath.Join(string(d), "qmp") }
func (d dir) authorizedKeys() string { return filepath.Join(d.Share(), "authorized_keys") }

// Console returns the path of the host's console log.
func (d dir) Console() string { return filepath.Join(string(d), "console.log") }

// Share returns the directory that the host sees as /share.
func (d dir) Share() string { return filepath.Join(string(d), "share") }

// Wire returns the path of the recording of the i-th NIC's traffic, in pcap format.
func (d dir) Wire(i int) string { return filepath.Join(string(d), fmt.Sprintf("wire%d.pcap", i)) }

// StateDir returns the directory of the testbed called name: below $FASTIOV_STATE,
// $XDG_STATE_HOME/fastiov or ~/.local/state/fastiov.
func StateDir(name string) (string, error) {
	root := os.Getenv("FASTIOV_STATE")
	if root == "" {
		base := os.Getenv("XDG_STATE_HOME")
		if base == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return "", fmt.Errorf("no place for the testbed's state: %w: set FASTIOV_STATE",
					err)
			}
			base = filepath.Join(home, ".local", "state")
		}
		root = filepath.Join(base, "fastiov")
	}
	path, err := filepath.Abs(filepath.Join(root, "testbed", name))
	if err == nil && len(dir(path).qmpSocket()) > 100 {
		err = fmt.Errorf("%s is too long a path for a socket: set FASTIOV_STATE to a shorter one",
			path)
	}
	return path, err
}

// A record describes a booting or booted host.
type record struct {
	PID        int
	QEMU       string // its version
	Made       string // from what the host is made
	StartTicks uint64 // when the process started; together with PID it names one process
	SSHPort    int
	HostKey    []byte // as first seen; empty while the host boots
	Config     Config
	Booted     float64 // seconds that Up took
}

// load returns the record of the testbed's QEMU, or nil if no recorded QEMU lives.
func (d dir) load() (*record, error) {
	raw, err := os.ReadFile(d.record())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fmt.Errorf(
			"%s is damaged (%w): end its QEMU by hand, if one runs, and remove the file",
			d.record(), err)
	}
	if ticks, err := procfs.StartTicks(r.PID); err != nil || ticks != r.StartTicks {
		return nil, nil
	}
	return &r, nil
}

func (d dir) store(r record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := d.record() + ".new"
	if err := os.WriteFile(tmp, raw, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, d.record())
}

// sweep removes what a former host left, except its logs if keep is true.
func (d dir) sweep(keep bool) {
	wires, _ := filepath.Glob(filepath.Join(string(d), "wire*.pcap"))
	gone := append(wires, d.record(), d.key(), d.qmpSocket(), d.Share())
	if !keep {
		gone = append(gone, d.Console(), d.qemuLog())
	}
	for _, path := range gone {
		os.RemoveAll(path)
	}
}

// hold waits for the directory's lock, takes it, and returns a function that releases it.
func (d dir) hold(ctx context.Context) (release func(), err error) {
	for {
		f, err := d.openLock()
		if err != nil {
			return nil, err
		}
		got := make(chan error, 1)
		go func() { got <- flock(f, unix.LOCK_EX) }()
		select {
		case err = <-got:
		case <-ctx.Done():
			go func() { <-got; f.Close() }()
			return nil, fmt.Errorf("another command is at work on the testbed in %s: %w",
				d, context.Cause(ctx))
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", d.lock(), err)
		}
		if d.stillThere(f) {
			return func() { f.Close() }, nil
		}
		f.Close()
	}
}

// removeIfIdle removes the directory of a testbed that is not up, unless another command uses it.
func (d dir) removeIfIdle() {
	f, err := d.openLock()
	if err != nil {
		return
	}
	defer f.Close()
	if flock(f, unix.LOCK_EX|unix.LOCK_NB) != nil || !d.stillThere(f) {
		return
	}
	if r, err := d.load(); r == nil && err == nil {
		os.RemoveAll(string(d))
	}
}

func (d dir) openLock() (f *os.File, err error) {
	for range 100 { // another command may remove the directory before the lock is in it
		if err = os.MkdirAll(string(d), 0o700); err == nil {
			f, err = os.OpenFile(d.lock(), os.O_CREATE|os.O_RDWR, 0o600)
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return f, err
}

// stillThere reports whether f is still the lock, and not the lock of a directory that was removed
// while we waited for it.
func (d dir) stillThere(f *os.File) bool {
	mine, err1 := f.Stat()
	now, err2 := os.Stat(d.lock())
	return err1 == nil && err2 == nil && os.SameFile(mine, now)
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}

// diskFull turns ENOSPC into an error that tells people what to do. It returns other errors
// unchanged.
func diskFull(path string, err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf(
			"the disk that holds %s is full: free some space, or set FASTIOV_STATE to another disk",
			path)
	}
	return err
}
