package qemu

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/kprobe"
	"github.com/fastiov/fastiov/node-agent/sandbox"
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
	runtime, err := images.Runtime(context.Background(), runtimeName)
	if err != nil {
		t.Fatal(err)
	}
	probe, err := kprobe.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(probe.Close)
	config.Binary, config.Kernel, config.Initrd = "qemu-system-x86_64", images.Guest.Kernel, images.Guest.Initrd
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
			return sandbox.Spec{Root: runtime.Root, Program: runtime.Program, MemoryMiB: 192, VF: &vfs[n]}
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
		s.Run(t)
	})
}
