package ablation

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// Programs that start and mounts are counted. It runs in a testbed, since not every machine allows
// hooks in its kernel.
func TestCallsAreCounted(t *testing.T) {
	testbed.Inside(t, testbed.Needs{}, func(t *testing.T) {
		c, err := CountCalls()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		before, err := c.Read()
		if err != nil {
			t.Fatal(err)
		}
		if err := startOne(); err != nil {
			t.Fatal(err)
		}
		if err := mountOne(t.TempDir()); err != nil {
			t.Fatal(err)
		}
		after, err := c.Read()
		if err != nil {
			t.Fatal(err)
		}
		for count, least := range map[Count]float64{Execs: 1, Mounts: 1, IPTables: 0} {
			if now, counted := after[count]; !counted || now-before[count] < least {
				t.Errorf("%s: %v before, %v after, counted: %v", count, before[count], now, counted)
			}
		}
	})
}

func startOne() error {
	process, err := os.StartProcess("/proc/self/exe", []string{"test", "-test.run=^$"},
		&os.ProcAttr{})
	if err != nil {
		return err
	}
	state, err := process.Wait()
	if err == nil && !state.Success() {
		err = fmt.Errorf("it ended with %v", state)
	}
	return err
}

func mountOne(dir string) error {
	at := filepath.Join(dir, "mounted")
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, ""); err != nil {
		return err
	}
	return unix.Unmount(at, 0)
}
