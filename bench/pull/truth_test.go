//go:build images

package pull

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/build"
	"github.com/fastiov/fastiov/node-agent/image/imagetest"
	"github.com/fastiov/fastiov/node-agent/image/oci"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// TestSamplesAreWhatContainerdUnpacks pulls the images made of Debian's packages with Debian's
// containerd and with the cache, mounts both, and compares every file.
func TestSamplesAreWhatContainerdUnpacks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to unpack and to mount")
	}
	program, err := exec.LookPath("containerd")
	if err != nil {
		if os.Getenv("FASTIOV_CI") != "" {
			t.Fatalf("FASTIOV_CI is set: %v", err)
		}
		t.Skip("this machine has no containerd")
	}
	b, err := build.Open("", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, name := range build.Samples {
		t.Run(name, func(t *testing.T) {
			s, err := b.Sample(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			r, err := ServeImages(map[string]string{name: s.Dir})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			theirs := byContainerd(t, filepath.Dir(program), r.Host+"/"+name+":1")
			ours := byCache(t, r.Host, r.Host+"/"+name+":1")
			if diff := imagetest.Differ(ours, theirs); diff != "" {
				t.Errorf("%.2000s", diff)
			}
			t.Logf("%d files", len(theirs))
		})
	}
}

func byContainerd(t *testing.T, programs, ref string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	c := &Containerd{Dir: programs, Snapshotter: "overlayfs", Config: Default}
	if err := c.Start(t.Context(), dir, 0); err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	if _, err := c.Pull(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, "mounted")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := c.ctr(t.Context(), "images", "mount", ref, at).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	defer func() { _ = unix.Unmount(at, 0) }()
	return imagetest.Inventory(t, at)
}

func byCache(t *testing.T, host, ref string) map[string]string {
	t.Helper()
	registries, err := oci.ParseRegistries([]string{"http://" + host})
	if err != nil {
		t.Fatal(err)
	}
	c, err := image.Open(t.TempDir(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Source.Allow(registries, nil)
	r, release, err := c.Pull(t.Context(), ref, "")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	at := t.TempDir()
	if err := rootfs.Mount(at, r.Root, r.Layers...); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(at, 0) }()
	return imagetest.Inventory(t, at)
}
