package qemu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	stdruntime "runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/kprobe"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/jail/filter"
	"github.com/fastiov/fastiov/node-agent/sandbox/sandboxtest"
	"github.com/fastiov/fastiov/testbed"
)

const runtimeName = "python:3"

// subject is a driver under test, of memory as config says.
func subject(t *testing.T, config Config) (sandboxtest.Subject, *kprobe.Probe) {
	t.Helper()
	images, err := image.OpenSet(testbed.ImagesDir)
	if err != nil {
		t.Fatal(err)
	}
	vfs := sandboxtest.VFs(t)
	runtime, _, err := images.Use(context.Background(), runtimeName, "")
	if err != nil {
		t.Fatal(err)
	}
	probe, err := kprobe.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(probe.Close)
	if config.QEMU.Program == "" {
		if config.QEMU, err = hypervisor.Find(t.Context(), images.QEMU); err != nil {
			t.Fatal(err)
		}
	}
	if config.Kernel == "" {
		config.Kernel, config.Initrd = images.Guest.Kernel, images.Guest.Initrd
	}
	config.Rooms = 4
	config.Probe, config.Log = probe, slog.New(slog.NewTextHandler(os.Stderr, nil))
	return sandboxtest.Subject{
		Open: func() (sandbox.Driver, func(), error) {
			d, err := Open(config)
			if err != nil {
				return nil, nil, err
			}
			return d, d.Close, nil
		},
		Spec: func(n int) sandbox.Spec {
			return sandbox.Spec{
				Root: runtime.Root, Program: runtime.Program, MemoryMiB: 192, NIC: &vfs[n],
			}
		},
		AtOnce:   4, // a burst of as many as there are VFs is the command line's
		Within:   5 * time.Minute,
		Survives: true,
		Log:      "hello NAME",
	}, probe
}

func TestConformance(t *testing.T) {
	testbed.Inside(t, testbed.Needs{NICs: 1, Images: []string{runtimeName}}, func(t *testing.T) {
		s, _ := subject(t, Config{})
		traced := trace(t)
		s.Run(t)
		t.Run("a VMM that cannot start says why", func(t *testing.T) { cannotStart(t, s) })
		t.Run("a VMM that was stopped goes on", func(t *testing.T) { halted(t, s) })
		t.Run("a root of several files", func(t *testing.T) { ofFiles(t, s) })
		traced.hold(t)
	})
}

// ofFiles starts a guest whose root image lies in two files, as one that was pulled does.
func ofFiles(t *testing.T, s sandboxtest.Subject) {
	sb, err := begin(t, s, func(spec *sandbox.Spec) {
		whole, err := os.ReadFile(spec.Root)
		if err != nil {
			t.Fatal(err)
		}
		dir, half := t.TempDir(), len(whole)/2&^4095
		spec.Root, spec.Layers = filepath.Join(dir, "root"), []string{filepath.Join(dir, "layer")}
		for path, part := range map[string][]byte{
			spec.Root: whole[:half], spec.Layers[0]: whole[half:],
		} {
			if err := os.WriteFile(path, part, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	sb.Close()
}

// TestThePrefixIsTheRootOfItsVMM starts a microVM in a QEMU from a prefix, as where the machine's
// own is too old.
func TestThePrefixIsTheRootOfItsVMM(t *testing.T) {
	needs := testbed.Needs{NICs: 1, Images: []string{runtimeName, hypervisor.Thing}}
	testbed.Inside(t, needs, func(t *testing.T) {
		images, err := image.OpenSet(testbed.ImagesDir)
		if err != nil {
			t.Fatal(err)
		}
		from, err := images.QEMU(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// the shared file system lets no user in who is not root
		prefix := t.TempDir()
		if err := os.CopyFS(prefix, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
		vmm, err := hypervisor.In(t.Context(), prefix)
		if err != nil {
			t.Fatal(err)
		}
		s, _ := subject(t, Config{QEMU: vmm})
		sb, err := begin(t, s, func(*sandbox.Spec) {})
		if err != nil {
			t.Fatal(err)
		}
		defer sb.Close()
		running, err := os.Stat(fmt.Sprintf("/proc/%d/exe", sb.(*vm).cell.PID()))
		if err != nil {
			t.Fatal(err)
		}
		program, err := os.Stat(vmm.Path())
		if err != nil || !os.SameFile(running, program) {
			t.Errorf("the VMM is not %s (%v)", vmm.Path(), err)
		}
		f, err := filter.For(vmm.Path())
		if err != nil || !f.Known() {
			t.Errorf("its calls are not known: %s, %v", f.Says, err)
		}
	})
}

// begin starts a sandbox of the subject as change makes it.
func begin(t *testing.T, s sandboxtest.Subject,
	change func(*sandbox.Spec)) (sandbox.Sandbox, error) {
	t.Helper()
	d, leave, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(leave)
	spec := s.Spec(0)
	spec.ID, spec.Dir = "single", t.TempDir()
	change(&spec)
	ctx, cancel := context.WithTimeout(t.Context(), s.Within)
	defer cancel()
	return d.Start(ctx, spec, &timeline.Timeline{}, func(sandbox.Record) error { return nil })
}

// slowClock makes the host's one that only the kernel can read, for the rest of the test.
func slowClock(t *testing.T) {
	const dir = "/sys/devices/system/clocksource/clocksource0/"
	const current = dir + "current_clocksource"
	before, err := os.ReadFile(current)
	if err != nil {
		t.Fatal(err)
	}
	all, err := os.ReadFile(dir + "available_clocksource")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields(string(all)) {
		if name == "hpet" || name == "acpi_pm" {
			if err := os.WriteFile(current, []byte(name), 0); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.WriteFile(current, before, 0) })
			return
		}
	}
	t.Fatalf("the host has no slow clock among %s", all)
}

func cannotStart(t *testing.T, s sandboxtest.Subject) {
	sb, err := begin(t, s, func(spec *sandbox.Spec) { spec.Root = t.TempDir() })
	if err == nil {
		sb.Close()
		t.Fatal("it started from a directory")
	}
	if !strings.Contains(err.Error(), "QEMU says:") {
		t.Error(err)
	}
}

// halted makes the kernel interrupt every wait of the VMM, which each thread then takes up again.
// It also makes the VMM ask the kernel for the time, as on hosts whose clock cannot be read without
// that.
func halted(t *testing.T, s sandboxtest.Subject) {
	sb, err := begin(t, s, func(*sandbox.Spec) {})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Close()
	slowClock(t)
	ctx, cancel := context.WithTimeout(t.Context(), s.Within)
	defer cancel()
	runtime := openwhisk.New(sb, wire.RuntimePort, nil)
	status, _, err := runtime.Init(ctx, []byte(sandboxtest.Init))
	if err != nil || status != http.StatusOK {
		t.Fatal(status, err)
	} // it has read the disk, whose workers now wait for more
	for range 10 {
		for _, signal := range []unix.Signal{unix.SIGSTOP, unix.SIGCONT} {
			if err := unix.Kill(sb.(*vm).cell.PID(), signal); err != nil {
				t.Fatal(err)
			}
			stdruntime.Gosched()
		}
	}
	if err := errors.Join(sb.Pause(ctx), sb.Resume(ctx)); err != nil {
		t.Fatal(err)
	}
	status, _, err = runtime.Run(ctx, []byte(`{"value":{"name":"again"}}`), time.Time{})
	if err != nil || status != http.StatusOK {
		t.Fatal(status, err)
	}
}
