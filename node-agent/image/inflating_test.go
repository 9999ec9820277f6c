package image

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/fastiov/fastiov/node-agent/image/oci"
)

// The first pull measures, and every cache of the machine that has the entry goes by it.
func TestInflatersAreMeasuredOnce(t *testing.T) {
	dir := t.TempDir()
	var former oci.Inflating
	for round := range 2 {
		c := open(t, dir)
		c.inflate.found = false
		with := c.inflating(t.Context())
		if with.Inflater == "" || round > 0 && with != former {
			t.Fatalf("round %d: %+v, and before that %+v", round, with, former)
		}
		former = with
		speeds := filepath.Join(filepath.Dir(with.Tools), speedsName)
		if round == 0 { // a machine where another is the fastest
			if err := os.WriteFile(speeds, []byte(`{"go":1}`), 0o644); err != nil {
				t.Fatal(err)
			}
			former.Inflater = "go"
		}
	}
}

// A layer is the same with every inflater.
func TestEveryInflaterMakesTheSameLayer(t *testing.T) {
	ref := push(t, newRegistry(t), func(*v1.ConfigFile) {})
	var former []byte
	for _, name := range []string{"klauspost", "go", "igzip"} {
		c := openFor(t, t.TempDir(), ref)
		c.inflate.found = false
		with := c.inflating(t.Context())
		_, err := os.Stat(filepath.Join(with.Tools, name))
		if name == "igzip" && err != nil {
			if os.Getenv("FASTIOV_CI") != "" {
				t.Fatalf("FASTIOV_CI is set, and this machine has no igzip (package isal): %v", err)
			}
			t.Skip("this machine has no igzip")
		}
		c.inflate.with.Inflater = name
		r, err := keep(t, c, ref)
		if err != nil {
			t.Fatal(name, err)
		}
		f, err := os.Open(r.Layers[0])
		if err != nil {
			t.Fatal(err)
		}
		blob, err := io.ReadAll(f)
		f.Close()
		if err != nil || former != nil && string(blob) != string(former) {
			t.Errorf("%s makes another blob (%v)", name, err)
		}
		former = blob
	}
}
