package sandboxtest

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Nobody is a user without any privilege.
const Nobody = 65534

// AsUser runs do as a user that has no capability, on a thread of its own that ends with it. What
// do starts beside it, or opens through package net, would run as root.
func AsUser(t *testing.T, uid int, do func()) {
	t.Helper()
	done := make(chan unix.Errno)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		id := uintptr(uid)
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, id, id, id)
		if errno == 0 {
			do()
		}
		done <- errno
	}()
	if errno := <-done; errno != 0 {
		t.Fatalf("cannot become user %d: %v", uid, errno)
	}
}
