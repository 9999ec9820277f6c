package rootfs

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// memory is an archive in memory.
type memory struct {
	*bytes.Reader
	behind bytes.Buffer
}

func (m *memory) Spill(fill func(io.Writer) error) (int64, error) {
	at := m.Size() + int64(m.behind.Len())
	err := fill(&m.behind)
	m.behind.Write(make([]byte, -m.behind.Len()&(1<<blobBlockBits-1)))
	return at, err
}

// indexed puts an archive over the tree as a blob, and returns the blob.
func indexed(t testing.TB, tree *Tree, archive []byte) []byte {
	t.Helper()
	m := &memory{Reader: bytes.NewReader(archive)}
	var index bytes.Buffer
	if _, err := Scan(m, Limits{1 << 30, 1 << 20, 1 << 24}, &index); err != nil {
		t.Fatal(err)
	}
	blob := append(bytes.Clone(archive), m.behind.Bytes()...)
	blob = append(blob, make([]byte, -len(blob)&(blockSize-1))...)
	if err := tree.Overlay(&index, Blob{bytes.NewReader(blob), int64(len(blob))}); err != nil {
		t.Fatal(err)
	}
	return blob
}

func rich(t testing.TB, layer int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	put := func(h tar.Header, content string) {
		h.Size, h.Mode = int64(len(content)), 0o640
		h.Format = tar.FormatPAX
		h.ModTime = time.Unix(1e9+int64(layer), 500)
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(w, content)
	}
	for n := range 200 {
		put(tar.Header{Name: fmt.Sprintf("dir%d/file-%d-%s", n%3, n, strings.Repeat("n", n)),
			Typeflag: tar.TypeReg, Uid: 70000 + n, Gid: 80000},
			strings.Repeat(fmt.Sprint(layer, n, " "), n*n/4))
	}
	put(tar.Header{Name: "dir0/hard", Typeflag: tar.TypeLink, Linkname: "dir0/file-3-nnn"}, "")
	put(tar.Header{Name: "fifo", Typeflag: tar.TypeFifo}, "")
	put(tar.Header{Name: "link", Typeflag: tar.TypeSymlink,
		Linkname: strings.Repeat("x/", 400) + "end"}, "")
	put(tar.Header{Name: "able", Typeflag: tar.TypeReg, PAXRecords: map[string]string{
		paxXattr + "security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00" +
			"\x00\x00\x00\x00\x00\x00\x00\x00",
		paxXattr + "user.long":                strings.Repeat("v", 3000),
		paxXattr + "user.b":                   "",
		paxXattr + "trusted.overlay.redirect": "/etc",
	}}, "able")
	put(tar.Header{Name: "bare", Typeflag: tar.TypeReg, PAXRecords: map[string]string{
		paxXattr + "user.a": "1"}}, "")
	if layer > 1 {
		put(tar.Header{Name: "dir1/" + opaque, Typeflag: tar.TypeReg}, "")
		put(tar.Header{Name: "dir2/.wh.file-2-nn", Typeflag: tar.TypeReg}, "")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestKernelReadsIndexedLayers mounts an image whose contents are in blobs, from files and as one
// disk, and looks at every name.
func TestKernelReadsIndexedLayers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	tree, dir, at := newTree(t), t.TempDir(), t.TempDir()
	name, disk := filepath.Join(dir, "image"), filepath.Join(dir, "disk")
	options := ""
	var blobs [][]byte
	for n := range 3 {
		blobs = append(blobs, indexed(t, tree, rich(t, n)))
		file := fmt.Sprint(dir, "/blob", n)
		if err := os.WriteFile(file, blobs[n], 0o600); err != nil {
			t.Fatal(err)
		}
		options = strings.TrimPrefix(options+",device="+file, ",")
	}
	if err := tree.WriteImage(name); err != nil {
		t.Fatal(err)
	}
	if err := Check(name); err != nil {
		t.Error(err)
	}
	image, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(disk, append(image, bytes.Join(blobs, nil)...), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, 0) })
	if err := unix.Mount(name, at, "erofs", unix.MS_RDONLY, options); err != nil {
		t.Skipf("needs a kernel that mounts EROFS from files: %v", err)
	}
	look(t, tree, at)
	_ = unix.Unmount(at, 0)
	if out, err := exec.Command("mount", "-t", "erofs", "-o", "ro,loop", disk,
		at).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	look(t, tree, at)
}

func look(t *testing.T, tree *Tree, at string) {
	t.Helper()
	compare(t, tree, at)
	walk(tree.root, "", func(name string, n *node) {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(at, name), &st); err != nil {
			t.Error(err)
			return
		}
		if st.Mtim.Sec != n.sec || st.Mtim.Nsec != int64(n.nsec) {
			t.Errorf("%s: changed at %d.%d, want %d.%d", name, st.Mtim.Sec, st.Mtim.Nsec, n.sec,
				n.nsec)
		}
		for _, x := range n.xattrs {
			value := make([]byte, maxXattrs)
			got, err := unix.Lgetxattr(filepath.Join(at, name), x.Name, value)
			if err != nil || string(value[:got]) != x.Value {
				t.Errorf("%s: %s is %q (%v), want %q", name, x.Name, value[:max(0, got)], err,
					x.Value)
			}
		}
		if n.is(syscall.S_IFREG) && name == "able" && len(n.xattrs) != 3 {
			t.Errorf("%s has %d attributes", name, len(n.xattrs))
		}
	})
}

// TestAnIndexSaysWhatItsArchiveDoes compares an indexed layer with the same layer as it is read.
func TestAnIndexSaysWhatItsArchiveDoes(t *testing.T) {
	a, b := newTree(t), newTree(t)
	for n := range 3 {
		indexed(t, a, rich(t, n))
		if err := b.Layer(bytes.NewReader(rich(t, n))); err != nil {
			t.Fatal(err)
		}
	}
	if listing(a) != listing(b) {
		t.Error("they differ")
	}
}

// A sparse file's content is spilled behind its archive.
func TestASparseFileIsWhole(t *testing.T) {
	var b bytes.Buffer // GNU.sparse 1.0: the map comes before the data
	w := tar.NewWriter(&b)
	stored := append([]byte("1\n1024\n5\n"), make([]byte, 512-9)...)
	stored = append(stored, "bytes"...)
	h := &tar.Header{Name: "GNUSparseFile.0/s", Typeflag: tar.TypeReg, Mode: 0o600,
		Size: int64(len(stored))}
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(stored)
	_ = w.Close()
	var pax bytes.Buffer // archive/tar does not write sparse files
	for _, r := range [][2]string{{"GNU.sparse.major", "1"}, {"GNU.sparse.minor", "0"},
		{"GNU.sparse.name", "s"}, {"GNU.sparse.realsize", "1029"}} {
		record := fmt.Sprintf(" %s=%s\n", r[0], r[1])
		fmt.Fprintf(&pax, "%d%s", len(record)+2, record)
	}
	var all bytes.Buffer
	raw := make([]byte, 512)
	copy(raw, "PaxHeaders/s")
	copy(raw[100:], "0000644\x000000000\x000000000\x00")
	copy(raw[124:], fmt.Sprintf("%011o\x00%011o\x00", pax.Len(), 0))
	copy(raw[148:], "        x")
	copy(raw[257:], "ustar\x0000")
	sum := 0
	for _, c := range raw {
		sum += int(c)
	}
	copy(raw[148:], fmt.Sprintf("%06o\x00 ", sum))
	all.Write(raw)
	all.Write(pax.Bytes())
	all.Write(make([]byte, -pax.Len()&511))
	all.Write(b.Bytes())
	tree := newTree(t)
	indexed(t, tree, all.Bytes())
	got, err := tree.Read("s")
	if want := string(make([]byte, 1024)) + "bytes"; err != nil || string(got) != want {
		t.Errorf("got %q, %v", got, err)
	}
}

// FuzzIndex passes any bytes as an index, and writes an image of the result.
func FuzzIndex(f *testing.F) {
	var index bytes.Buffer
	m := &memory{Reader: bytes.NewReader(rich(f, 2))}
	if _, err := Scan(m, Limits{1 << 30, 1 << 20, 1 << 24}, &index); err != nil {
		f.Fatal(err)
	}
	f.Add(index.Bytes())
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		tree, err := New(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		tree.Limit(1<<40, 1000, 1<<20)
		_ = tree.Overlay(bytes.NewReader(b), Blob{bytes.NewReader(nil), 1 << 20})
		name := filepath.Join(dir, fmt.Sprint("image-", os.Getpid()))
		if err := tree.WriteImage(name); err != nil {
			t.Error(err)
		}
		os.Remove(name)
	})
}
