//go:build scon

package express

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const inside = "FASTIOV_TEST_EXPRESS_INSIDE"

// TestMain is the process of a host, too. As root, tests run in network and mount namespaces of
// their own.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "host" {
		if err := Serve(os.Args[2], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Geteuid() != 0 || os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Env = append(os.Environ(), inside+"=1")
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		Pdeathsig: unix.SIGKILL}
	if err := again.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Every load is played by every arm that this kernel has, and express packets go express.
func TestEveryLoadIsPlayed(t *testing.T) {
	if os.Getenv(inside) == "" {
		t.Skip("needs root")
	}
	kept, err := Keep("")
	if err != nil {
		t.Fatal(err)
	}
	b := Bench{Rounds: 1, Budget: time.Millisecond, Kept: kept, Out: t.Output(),
		Command: []string{"/proc/self/exe", "host"}}
	r, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range loads() {
		for _, arm := range l.arms {
			c := r.cell(l.Name, arm)
			if b.missing[arm] || b.missing[arm+l.Name] {
				continue
			}
			if c == nil || c.CPUNs.Median <= 0 || c.PerSecond <= 0 {
				t.Errorf("%s by %s: %+v", l.Name, arm, c)
			}
		}
	}
	for _, arm := range []string{Native, Bridge, Express} {
		if b.missing[arm] {
			t.Errorf("%s is left out", arm)
		}
	}
	if err := r.Draw(t.TempDir(), "fastiov bench scon"); err != nil {
		t.Fatal(err)
	}
}
