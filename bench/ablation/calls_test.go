package ablation

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/sandbox/jail"
	"github.com/fastiov/fastiov/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// Programs that start and mounts are counted, but no rooms that are made ahead. It runs in a
// testbed, since not every machine allows hooks in its kernel.
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
		host, err := jail.Open(jail.Config{Name: "counted", Program: "/proc/self/exe", Rooms: 4,
			BestEffort: true, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer host.Close()
		if before, err = c.Read(); err != nil {
			t.Fatal(err)
		}
		for !host.Stocked() {
			time.Sleep(10 * time.Millisecond)
		}
		if after, err = c.Read(); err != nil {
			t.Fatal(err)
		}
		if after[Mounts] != before[Mounts] {
			t.Errorf("%v mounts of rooms are counted", after[Mounts]-before[Mounts])
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
