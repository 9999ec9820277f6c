package command

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"golang.org/x/sys/unix"
)

// An invoker finds its own bounds when it starts. The bounds of its callers follow from them.

// bodyShare is the part of the memory that what callers send may take. While a call runs, or is
// promised, up to three copies of its arguments are on their way, to the node and to the disk.
const bodyShare = 1. / 4

// connectionBytes is about what a connection takes that brings one request at a time: its buffers,
// and the stacks that serve it.
const connectionBytes = 32 << 10

// Nobody touches the ballast, so it takes no memory.
const ballastBytes = 32 << 20

var ballast []byte

// collectSeldom has the garbage collector wait until as much garbage as the ballast is there. The
// live heap has a few megabytes, and thousands of calls a second would have it collected many times
// a second; calls that meet a collection wait for it.
func collectSeldom() {
	if os.Getenv("GOGC") == "" && ballast == nil {
		ballast = make([]byte, ballastBytes)
	}
}

// memoryLimit returns how much memory this process may use: GOMEMLIMIT, else the limit of its
// cgroup, else a quarter of the machine's, since the rest is for sandboxes. Unless GOMEMLIMIT says
// when, garbage is collected more often once more than nine tenths are in use.
func memoryLimit() (int64, error) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return debug.SetMemoryLimit(-1), nil
	}
	find := memlimit.ApplyFallback(memlimit.FromCgroup,
		memlimit.ApplyRatio(memlimit.FromSystem, 0.25))
	limit, err := find()
	if err != nil {
		return 0, fmt.Errorf("how much memory there is: %w; say it by GOMEMLIMIT", err)
	}
	debug.SetMemoryLimit(int64(limit)/10*9 + ballastBytes) // the ballast is never in memory
	return int64(limit), nil
}

// mostConnections leaves a quarter of the file descriptors to the store, the nodes and the
// commands, and three quarters of the memory to uses other than connections.
func mostConnections(memory int64) (int, error) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 0, fmt.Errorf("how many files may be open: %w", err)
	}
	return int(min(files.Cur/4*3, uint64(memory/4/connectionBytes))), nil
}
