//go:build images

package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/archive"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/image/imagetest"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

const generated = 1000

// TestGeneratedImagesAreWhatContainerdUnpacks: images of a few layers with all that archives can
// say are mounted as containerd's unpacking and the kernel's overlay make them.
func TestGeneratedImagesAreWhatContainerdUnpacks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to unpack and to mount")
	}
	images := generated
	if testing.Short() {
		images = 100
	}
	host := newRegistry(t)
	var c *Cache
	entries := 0
	for seed := range images {
		if seed%100 == 0 { // each layer that comes has the whole cache looked through
			c = openFor(t, t.TempDir(), host+"/x")
		}
		g := generate(uint64(seed))
		theirs, err := unpackedByContainerd(t, g.layers)
		if err != nil {
			t.Fatalf("image %d: containerd refuses what was generated: %v", seed, err)
		}
		ours := g.pulled(t, c, fmt.Sprintf("%s/generated:%d", host, seed))
		entries += len(theirs)
		if diff := imagetest.Differ(ours, theirs); diff != "" {
			t.Fatalf("image %d:\n%s", seed, diff)
		}
	}
	t.Logf("%d images of %d files", images, entries)
}

// TestAFlippedBitIsSeen: the comparison sees one bit of a blob that nobody checks any more.
func TestAFlippedBitIsSeen(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to unpack and to mount")
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	content := bytes.Repeat([]byte("what a file has, "), 1000)
	err := w.WriteHeader(&tar.Header{Name: "x", Typeflag: tar.TypeReg, Mode: 0o644,
		Size: int64(len(content)), ModTime: time.Unix(1, 0)})
	if err := errors.Join(err, write(w, content), w.Close()); err != nil {
		t.Fatal(err)
	}
	g := &generator{layers: [][]byte{b.Bytes()}}
	theirs, err := unpackedByContainerd(t, g.layers)
	if err != nil {
		t.Fatal(err)
	}
	host := newRegistry(t)
	c := openFor(t, t.TempDir(), host+"/x")
	if diff := imagetest.Differ(g.pulled(t, c, host+"/bit:1"), theirs); diff != "" {
		t.Fatal(diff)
	}
	r, err := keep(t, c, host+"/bit:1")
	if err != nil {
		t.Fatal(err)
	}
	blob, err := os.ReadFile(r.Layers[0])
	if err != nil {
		t.Fatal(err)
	}
	blob[bytes.Index(blob, content)+len(content)/2] ^= 1
	if err := os.WriteFile(r.Layers[0], blob, 0o644); err != nil {
		t.Fatal(err)
	}
	if imagetest.Differ(g.pulled(t, c, host+"/bit:1"), theirs) == "" {
		t.Error("a flipped bit is not seen")
	}
}

// A generator makes layers of a seed. Its archives say nothing that containerd and the overlay
// understand in two ways.
type generator struct {
	r      *rand.Rand
	layers [][]byte
	hidden []string // folders of which layers have hidden what was there, each with a slash
}

func generate(seed uint64) *generator {
	g := &generator{r: rand.New(rand.NewPCG(seed, 19))}
	for range 1 + g.r.IntN(4) {
		g.layers = append(g.layers, g.layer())
	}
	return g
}

func (g *generator) pick(of []string) string { return of[g.r.IntN(len(of))] }

var (
	dirNames  = []string{"a", "b", "c", "etc", "usr"}
	fileNames = []string{"x", "y", "z", "run.sh", strings.Repeat("long", 60), "ü and spaces"}
)

func (g *generator) dir() string {
	name := g.pick(dirNames)
	for g.r.IntN(2) == 0 && strings.Count(name, "/") < 4 {
		name += "/" + g.pick(dirNames)
	}
	return name
}

func (g *generator) header(name string, kind byte) *tar.Header {
	h := &tar.Header{Name: name, Typeflag: kind, Mode: int64(g.r.IntN(0o10000)),
		Uid: g.r.IntN(300_000), Gid: g.r.IntN(300_000), Format: tar.FormatPAX,
		ModTime:    time.Unix(g.r.Int64N(1e9), g.r.Int64N(1e9)),
		PAXRecords: map[string]string{}}
	if kind == tar.TypeReg || kind == tar.TypeDir {
		for range g.r.IntN(3) {
			h.PAXRecords["SCHILY.xattr.user.k"+g.pick(dirNames)] =
				strings.Repeat("v", 1+g.r.IntN(300))
		}
	}
	if kind == tar.TypeReg && g.r.IntN(5) == 0 { // cap_net_raw, permitted
		h.PAXRecords["SCHILY.xattr.security.capability"] =
			"\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	}
	return h
}

func (g *generator) layer() []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	put := func(h *tar.Header, content []byte) {
		h.Size = int64(len(content))
		if err := errors.Join(w.WriteHeader(h), write(w, content)); err != nil {
			panic(err)
		}
	}
	mine := map[string]byte{}
	var files, hides []string
	defer func() { g.hidden = append(g.hidden, hides...) }()
	add := func(name string, kind byte) bool {
		for up := filepath.Dir(name); up != "."; up = filepath.Dir(up) {
			if kind := mine[up]; kind != 0 && kind != tar.TypeDir {
				return false // below a file of this layer there is nothing
			}
		}
		if was := mine[name]; was != 0 {
			return false
		}
		for _, hidden := range g.hidden { // containerd gives its folders what the hidden ones had
			if strings.HasPrefix(name, hidden) {
				return false
			}
		}
		for _, hidden := range hides {
			if deep(name, hidden) {
				return false
			}
		}
		for up := filepath.Dir(name); up != "."; up = filepath.Dir(up) {
			mine[up] = tar.TypeDir
		}
		mine[name] = kind
		return true
	}
	for range 1 + g.r.IntN(20) {
		dir := g.dir()
		name := dir + "/" + g.pick(fileNames)
		switch g.r.IntN(9) {
		case 0, 1, 2:
			if add(name, tar.TypeReg) {
				content := make([]byte, g.r.IntN(3)*g.r.IntN(6000))
				for n := range content {
					content[n] = byte(g.r.Uint32())
				}
				put(g.header(name, tar.TypeReg), content)
				files = append(files, name)
			}
		case 3:
			if add(dir, tar.TypeDir) {
				put(g.header(dir+"/", tar.TypeDir), nil)
			}
		case 4:
			if add(name, tar.TypeSymlink) {
				h := g.header(name, tar.TypeSymlink)
				h.Linkname = g.pick([]string{"x", "../y", "/etc/z", "nowhere", "../../../.."})
				put(h, nil)
			}
		case 5:
			if len(files) > 0 && add(name, tar.TypeLink) {
				h := g.header(name, tar.TypeLink)
				h.Linkname = g.pick(files)
				put(h, nil)
			}
		case 6:
			if add(name, tar.TypeFifo) {
				put(g.header(name, tar.TypeFifo), nil)
			}
		case 7:
			if add(name, '.') { // whiteout: nothing of this layer is there, now or later
				put(g.header(dir+"/.wh."+filepath.Base(name), tar.TypeReg), nil)
			}
		case 8:
			below := func(name string) bool { return deep(name, dir+"/") }
			if !slices.ContainsFunc(slices.Collect(maps.Keys(mine)), below) &&
				add(dir+"/.wh..wh..opq", '.') {
				put(g.header(dir+"/.wh..wh..opq", tar.TypeReg), nil)
				hides = append(hides, dir+"/")
			}
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// deep reports whether name is in a folder below dir.
func deep(name, dir string) bool {
	rest, is := strings.CutPrefix(name, dir)
	return is && strings.Contains(rest, "/")
}

func write(w io.Writer, content []byte) error {
	_, err := w.Write(content)
	return err
}

// unpackedByContainerd applies the layers as containerd does for its overlay, mounts that, and
// returns what is there.
func unpackedByContainerd(t *testing.T, layers [][]byte) (map[string]string, error) {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	var parents []string // the uppermost first
	for n, layer := range layers {
		root := filepath.Join(dir, fmt.Sprint(n))
		if err := os.Mkdir(root, 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := archive.Apply(context.Background(), root, bytes.NewReader(layer),
			archive.WithConvertWhiteout(archive.OverlayConvertWhiteout),
			archive.WithParents(parents))
		if err != nil {
			return nil, err
		}
		parents = slices.Insert(parents, 0, root)
	}
	empty := filepath.Join(dir, "empty")
	at := filepath.Join(dir, "merged")
	if err := errors.Join(os.Mkdir(empty, 0o755), os.Mkdir(at, 0o755)); err != nil {
		t.Fatal(err)
	}
	lower := strings.Join(append(parents, empty), ":") // an overlay has two at least
	if err := unix.Mount("overlay", at, "overlay", unix.MS_RDONLY, "lowerdir="+lower); err != nil {
		t.Fatal("mount of an overlay: ", err)
	}
	defer func() { _ = unix.Unmount(at, 0) }()
	return imagetest.Inventory(t, at), nil
}

// pulled pulls an image of the layers, mounts it, and returns what is there.
func (g *generator) pulled(t *testing.T, c *Cache, ref string) map[string]string {
	t.Helper()
	var layers []v1.Layer
	for _, layer := range g.layers {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(layer)), nil
		})
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, l)
	}
	ref = pushLayers(t, ref, func(*v1.ConfigFile) {}, layers...)
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
