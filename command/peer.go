package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// errStays is the error of a process that does not end, though it may yet.
var errStays = errors.New("it has not ended in time")

// endServer ends the process that listens on a Unix socket. The kernel knows which process that is,
// whatever any file says. It stays if it has not ended by the deadline of ctx.
func endServer(ctx context.Context, socket string) error {
	return signalServer(ctx, socket, unix.SIGTERM)
}

func signalServer(ctx context.Context, socket string, signal unix.Signal) error {
	pid, process, err := serverOf(socket)
	if err != nil {
		return fmt.Errorf("the process behind %s: %w", socket, err)
	}
	defer unix.Close(process)
	if err := unix.PidfdSendSignal(process, signal, nil, 0); err != nil {
		return err
	}
	ended := []unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}
	const look = 200 * time.Millisecond // whether the caller still waits
	for !errors.Is(ctx.Err(), context.Canceled) {
		wait, late := look, false
		if deadline, has := ctx.Deadline(); has {
			left := time.Until(deadline)
			wait, late = min(look, max(0, left)), left <= 0
		}
		n, err := unix.Poll(ended, int(wait.Milliseconds()))
		switch {
		case n == 1:
			return nil
		case err != nil && err != unix.EINTR:
			return err
		case late:
			return fmt.Errorf("process %d: %w after %s; its log says why", pid, errStays,
				unix.SignalName(signal))
		}
	}
	return ctx.Err()
}

// serverOf returns the pid and a pidfd of the process that listens on socket.
func serverOf(socket string) (pid, process int, err error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	controlErr := raw.Control(func(fd uintptr) { pid, process, err = peerOf(int(fd)) })
	return pid, process, errors.Join(controlErr, err)
}

// peerOf returns the pid and a pidfd of the process that has called listen. The socket may outlive
// that process if another one has it open, too; its pid may then belong to a stranger. The pidfd
// never does.
func peerOf(socket int) (pid, process int, err error) {
	peer, err := unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, 0, err
	}
	pid = int(peer.Pid)
	process, err = unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, unix.ENOPROTOOPT) { // before Linux 6.5 there is the number alone
		process, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("process %d: %w", pid, err)
	}
	if unix.PidfdSendSignal(process, 0, nil, 0) == unix.ESRCH {
		unix.Close(process)
		return 0, 0, fmt.Errorf("process %d has ended: %w", pid, unix.ESRCH)
	}
	return pid, process, nil
}
