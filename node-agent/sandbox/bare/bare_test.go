package bare

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/sandboxtest"
	"github.com/fastiov/fastiov/testbed"
)

const program = "bare-vmm"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == program {
		fmt.Fprintln(os.Stderr, Main(os.Args[2:]))
		os.Exit(1)
	}
	testbed.Main(m)
}

func subject(t *testing.T, atOnce int, nic func(n int) *sandbox.NIC) sandboxtest.Subject {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return sandboxtest.Subject{
		Open: func() (sandbox.Driver, func(), error) {
			d, err := Open(Config{Command: []string{self, program}, Rooms: atOnce, BestEffort: true,
				Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				return nil, nil, err
			}
			return d, d.Close, nil
		},
		Spec:     func(n int) sandbox.Spec { return sandbox.Spec{MemoryMiB: 32, NIC: nic(n)} },
		AtOnce:   atOnce,
		Within:   time.Minute,
		Survives: true,
	}
}

func TestConformanceWithoutVF(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	subject(t, 16, func(int) *sandbox.NIC { return nil }).Run(t)
}

func TestConformanceWithVFs(t *testing.T) {
	testbed.Inside(t, testbed.Needs{NICs: 1}, func(t *testing.T) {
		vfs := sandboxtest.VFs(t)
		subject(t, len(vfs), func(n int) *sandbox.NIC { return &vfs[n] }).Run(t)
	})
}

func TestAVFThatIsNotThere(t *testing.T) {
	group := filepath.Join(t.TempDir(), "7")
	if vf, err := OpenVF(group, "0000:01:10.0"); err == nil {
		vf.Close()
		t.Error("opened")
	}
}

func TestParse(t *testing.T) {
	for _, args := range [][]string{{}, {"id"}, {"id", "many"}, {"id", "1", "/dev/vfio/7"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q taken", args)
		}
	}
	p, err := parse([]string{"id", "64", "/dev/vfio/7", "0000:01:10.0"})
	if err != nil || p.memory != 64 || p.vf != "0000:01:10.0" {
		t.Errorf("%+v, %v", p, err)
	}
}
