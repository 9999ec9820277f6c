//go:build failpoint

package failpoint

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// The armed failpoint kills at its n-th hit, not before, and others do nothing.
func TestHitKills(t *testing.T) {
	if os.Getenv(Env) != "" {
		Hit(LeaseChosen)
		Hit(LeaseJournalled)
		os.Stdout.WriteString("once\n")
		Hit(LeaseChosen)
		os.Stdout.WriteString("survived\n")
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestHitKills$")
	cmd.Env = append(os.Environ(), Env+"="+string(LeaseChosen)+":2")
	out, err := cmd.Output()
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if err == nil || status.Signal() != syscall.SIGKILL || string(out) != "once\n" {
		t.Fatalf("ended with %v, printed %q; want SIGKILL after \"once\"", err, out)
	}
}

func TestParseRefusesWhatNothingHits(t *testing.T) {
	for _, s := range []string{"vf-lease-chosen", "vf-lease-chosen:0", "vf-lease-chosen:x",
		"no-such-point:1"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q was accepted", s)
				}
			}()
			parse(s)
		}()
	}
}
