//go:build failpoint

package failpoint

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Enabled reports whether this build has failpoints.
const Enabled = true

var armed = parse(os.Getenv(Env))

type arm struct {
	name Name
	left atomic.Int64
}

// Hit marks a step, and kills the process if it is the armed one.
func Hit(name Name) {
	if armed == nil || armed.name != name || armed.left.Add(-1) != 0 {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal was sent; nothing after this line may run
}

// Delay sleeps, if DelayEnv names the step.
func Delay(name Name) {
	if step, length, _ := strings.Cut(os.Getenv(DelayEnv), ":"); step == string(name) {
		d, err := time.ParseDuration(length)
		if err != nil {
			panic(fmt.Sprintf("%s=%q: %v", DelayEnv, os.Getenv(DelayEnv), err))
		}
		time.Sleep(d)
	}
}

// parse reads name:n. It panics on an unknown name: with a misspelt failpoint, a chaos run would
// pass without testing anything.
func parse(s string) *arm {
	if s == "" {
		return nil
	}
	name, count, _ := strings.Cut(s, ":")
	n, err := strconv.ParseInt(count, 10, 64)
	if err != nil || n < 1 || !slices.Contains(All, Name(name)) {
		panic(fmt.Sprintf("%s=%q: want name:n with n ≥ 1 and name one of %v", Env, s, All))
	}
	a := &arm{name: Name(name)}
	a.left.Store(n)
	return a
}
