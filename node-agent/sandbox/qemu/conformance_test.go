package qemu

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/kprobe"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/sandboxtest"
	"github.com/fastiov/fastiov/testbed"
)

const (
	setName     = "qemu-test" // of the set of images, below the testbed's /share
	runtimeName = "python:3"
)

// inTestbed runs body in a testbed host that has guest and runtime images.
func inTestbed(t *testing.T, body func(t *testing.T, images *image.Set)) {
	t.Helper()
	needs := testbed.Needs{NICs: 1}
	if os.Getenv("FASTIOV_TESTBED") != "" && os.Getenv("FASTIOV_INSIDE") == "" {
		needs.Files = exported(t)
	}
	testbed.Inside(t, needs, func(t *testing.T) {
		images, err := image.OpenSet("/share/" + setName)
		if err != nil {
			t.Fatal(err)
		}
		body(t, images)
	})
}

// exported makes the images and lists their files by the name they are to have in the testbed.
func exported(t *testing.T) map[string]string {
	t.Helper()
	cache, err := image.Open("", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	dir := t.TempDir()
	if err := cache.Export(t.Context(), dir, runtimeName); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			name, _ := filepath.Rel(dir, path)
			files[filepath.Join(setName, name)] = path
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func subject(t *testing.T, images *image.Set) sandboxtest.Subject {
	t.Helper()
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
	return sandboxtest.Subject{
		Open: func() (sandbox.Driver, func(), error) {
			d, err := Open(Config{
				Binary: "qemu-system-x86_64", Kernel: images.Guest.Kernel, Initrd: images.Guest.Initrd, Probe: probe,
				Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
			})
			if err != nil {
				return nil, nil, err
			}
			return d, d.Close, nil
		},
		Spec: func(n int) sandbox.Spec {
			return sandbox.Spec{Root: runtime.Root, Command: runtime.Command, Env: runtime.Env, MemoryMiB: 192, VF: &vfs[n]}
		},
		AtOnce:   len(vfs),
		Within:   3 * time.Minute,
		Survives: true,
		Log:      "hello NAME",
	}
}

func TestConformance(t *testing.T) {
	inTestbed(t, func(t *testing.T, images *image.Set) { subject(t, images).Run(t) })
}
