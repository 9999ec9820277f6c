package rootfs

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func newTree(t testing.TB) *Tree {
	t.Helper()
	tree, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return tree
}

// archive makes a tar archive. An entry is "name=content", "name/" for a directory, "name->target"
// for a symbolic link, "name=>old" for a hard link, "name=!" for a device.
func archive(t testing.TB, entries ...string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h, content := tar.Header{Mode: 0o644}, ""
		if name, target, ok := strings.Cut(e, "->"); ok {
			h.Name, h.Linkname, h.Typeflag = name, target, tar.TypeSymlink
		} else if name, old, ok := strings.Cut(e, "=>"); ok {
			h.Name, h.Linkname, h.Typeflag = name, old, tar.TypeLink
		} else if name, ok := strings.CutSuffix(e, "=!"); ok {
			h.Name, h.Typeflag = name, tar.TypeBlock
		} else if name, ok := strings.CutSuffix(e, "/"); ok {
			h.Name, h.Typeflag, h.Mode = name+"/", tar.TypeDir, 0o755
		} else {
			h.Name, content, _ = strings.Cut(e, "=")
			h.Typeflag, h.Size = tar.TypeReg, int64(len(content))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// listing returns the tree in the notation of archive.
func listing(tree *Tree) string {
	var list []string
	walk(tree.root, "", func(name string, n *node) {
		switch {
		case n.children != nil:
			list = append(list, name+"/")
		case n.is(syscall.S_IFLNK):
			list = append(list, name+"->"+n.target)
		default:
			b, _ := io.ReadAll(tree.content(n))
			list = append(list, name+"="+string(b))
		}
	})
	return strings.Join(list, " ")
}

func TestLayers(t *testing.T) {
	for name, c := range map[string]struct {
		layers [][]string
		want   string
	}{
		"later wins":              {[][]string{{"a=1", "b=1"}, {"a=2"}}, "a=2 b=1"},
		"whiteout":                {[][]string{{"d/", "d/a=1", "d/b=1"}, {"d/.wh.a="}}, "d/ d/b=1"},
		"whiteout of a directory": {[][]string{{"d/", "d/a=1"}, {".wh.d="}}, ""},
		"whiteout, then anew":     {[][]string{{"d/a=1"}, {".wh.d=", "d/", "d/b=2"}}, "d/ d/b=2"},
		"own file survives":       {[][]string{{"a=1"}, {"a=2", ".wh.a="}}, "a=2"},
		"opaque": {[][]string{{"d/a=1", "d/s/b=1"},
			{"d/", "d/s/", "d/c=2", "d/.wh..wh..opq="}}, "d/ d/c=2 d/s/"},
		"whiteout of nothing": {[][]string{{"x/.wh.a="}}, "x/"},
		"directory over link": {[][]string{{"real/", "real/x=1", "l->real"}, {"l/", "l/y=2"}},
			"l/ l/y=2 real/ real/x=1"},
		"file through a link": {[][]string{{"usr/bin/", "bin->usr/bin", "bin/sh=1"}},
			"bin->usr/bin usr/ usr/bin/ usr/bin/sh=1"},
		"absolute link": {[][]string{{"usr/lib/", "lib->/usr/lib", "lib/x=1"}},
			"lib->/usr/lib usr/ usr/lib/ usr/lib/x=1"},
		"lower layer's link": {[][]string{{"usr/bin/", "bin->usr/bin"}, {"bin/sh=1"}},
			"bin/ bin/sh=1 usr/ usr/bin/"},
		"lower layer's file":      {[][]string{{"d=1"}, {"d/a=2"}}, "d/ d/a=2"},
		"opaque with unsaid dirs": {[][]string{{"d/s/a=1"}, {"d/s/b=2", "d/.wh..wh..opq="}}, "d/ d/s/ d/s/b=2"},
		"dots stop at the root": {[][]string{{"../../etc/x=1", "up->../../..", "up/y=1"}},
			"etc/ etc/x=1 up->../../.. y=1"},
		"device":              {[][]string{{"dev/sda=!", "a=1"}}, "a=1"},
		"hard link":           {[][]string{{"a=1", "b=>a"}, {".wh.a="}}, "b=1"},
		"file over directory": {[][]string{{"d/a=1"}, {"d=2"}}, "d=2"},
	} {
		t.Run(name, func(t *testing.T) {
			tree := newTree(t)
			for _, layer := range c.layers {
				if err := tree.Layer(archive(t, layer...)); err != nil {
					t.Fatal(err)
				}
			}
			if got := listing(tree); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestPackagesMergeThroughLinks(t *testing.T) {
	tree := newTree(t)
	for name, target := range map[string]string{"bin": "usr/bin", "lib": "usr/lib"} {
		if err := errors.Join(tree.Mkdir("usr/"+name, 0o755),
			tree.Symlink(name, target)); err != nil {
			t.Fatal(err)
		}
	}
	keep := func(name string) bool { return !strings.HasPrefix(name, "/usr/share/doc/") }
	if err := tree.Unpack(archive(t, "./", "./bin/", "./bin/sh=1", "./usr/share/doc/x=noise"),
		keep); err != nil {
		t.Fatal(err)
	}
	if got, want := listing(tree),
		"bin->usr/bin lib->usr/lib usr/ usr/bin/ usr/bin/sh=1 usr/lib/"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestRefusals(t *testing.T) {
	loop := []string{"a->b", "b->a", "a/x=1"}
	for name, c := range map[string]struct {
		entries []string
		want    string
	}{
		"link loop":            {loop, "too many levels"},
		"file as directory":    {[]string{"a=1", "a/b=1"}, "not a directory"},
		"hard link to nothing": {[]string{"b=>a"}, "does not exist"},
		"hard link to a dir":   {[]string{"a/", "b=>a"}, "invalid"},
		"long name":            {[]string{strings.Repeat("n", 256) + "=1"}, "too long"},
		"deep":                 {[]string{strings.Repeat("d/", maxDepth+1) + "f=1"}, "too long"},
		"whiteout of ..":       {[]string{"d/.wh...="}, "not a file name"},
		"too much content":     {[]string{"a=" + strings.Repeat("x", 4096)}, "exceed"},
		"too many names": {[]string{"a=", "b=", "c=", "d=", "e=", "f=", "g=", "h=", "i="},
			"more than 8 names"},
		"not a tar": {nil, "archive"},
	} {
		t.Run(name, func(t *testing.T) {
			tree := newTree(t)
			tree.Limit(4096, 8, 1<<20)
			if name == "deep" {
				tree.Limit(4096, 1<<20, 1<<20)
			}
			input := archive(t, c.entries...)
			if c.entries == nil {
				input = strings.NewReader(strings.Repeat("no tar ", 100))
			}
			if err := tree.Layer(input); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

// furnish fills a tree with everything that an image can contain: inline and block contents, a
// directory of many blocks, links.
func furnish(t testing.TB, tree *Tree) {
	t.Helper()
	big := bytes.Repeat([]byte("0123456789abcdef"), 1000)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(tree.Write("small", 0o640, []byte("hello\n")))
	must(tree.Write("big", 0o755, big))
	must(tree.Write("exact", 0o644, big[:2*blockSize]))
	must(tree.Write("inline-limit", 0o644, big[:inlineMax]))
	must(tree.Write("over-limit", 0o644, big[:inlineMax+1]))
	must(tree.Write("empty", 0o600, nil))
	must(tree.Mkdir("sticky", 0o1777))
	must(tree.Symlink("link", "dir/sub"))
	must(tree.Symlink("long-link", strings.Repeat("x/", 1500)+"end"))
	must(tree.link("hard", "big", &node{mode: 0o644}))
	for i := range 700 {
		must(tree.Write(fmt.Sprintf("dir/sub/file-%03d-%s", i, strings.Repeat("n", i%60)), 0o644,
			fmt.Appendf(nil, "%d", i)))
	}
	must(tree.Layer(archive(t, "owned/")))
	n, err := tree.dir("owned", false)
	must(err)
	n.uid, n.gid = 70000, 70001
}

func TestImageIsReproducible(t *testing.T) {
	var sums [2][32]byte
	for i := range sums {
		tree, name := newTree(t), filepath.Join(t.TempDir(), "image")
		if i == 1 { // what was replaced or removed leaves nothing in the image
			if err := errors.Join(tree.Write("big", 0o600, []byte("old")),
				tree.Write("gone", 0o600, []byte("old")), tree.Remove("gone")); err != nil {
				t.Fatal(err)
			}
		}
		furnish(t, tree)
		if err := tree.WriteImage(name); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = sha256.Sum256(b)
	}
	if sums[0] != sums[1] {
		t.Error("two images of equal trees differ")
	}
}

func TestImageStandsUpToFsck(t *testing.T) {
	fsck, err := exec.LookPath("fsck.erofs")
	if err != nil {
		t.Skip("needs fsck.erofs (package erofs-utils)")
	}
	tree, name := newTree(t), filepath.Join(t.TempDir(), "image")
	furnish(t, tree)
	if err := tree.WriteImage(name); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(fsck, name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestKernelReadsImage(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount")
	}
	tree, name, at := newTree(t), filepath.Join(t.TempDir(), "image"), t.TempDir()
	furnish(t, tree)
	if err := tree.WriteImage(name); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "erofs", "-o",
		"loop,ro", name, at).CombinedOutput(); err != nil {
		t.Skipf("needs a kernel with erofs and loop devices: %s", out)
	}
	defer func() {
		if out, err := exec.Command("umount", at).CombinedOutput(); err != nil {
			t.Errorf("umount: %s", out)
		}
	}()
	compare(t, tree, at)
}

func compare(t *testing.T, tree *Tree, at string) {
	count := 0
	walk(tree.root, "", func(name string, n *node) {
		count++
		info, err := os.Lstat(filepath.Join(at, name))
		if err != nil {
			t.Error(err)
			return
		}
		st := info.Sys().(*syscall.Stat_t)
		if st.Mode != n.mode || st.Uid != n.uid || st.Gid != n.gid {
			t.Errorf("%s: mode %o owner %d:%d, want %o %d:%d",
				name, st.Mode, st.Uid, st.Gid, n.mode, n.uid, n.gid)
		}
		switch {
		case n.is(syscall.S_IFLNK):
			if got, err := os.Readlink(filepath.Join(at, name)); got != n.target {
				t.Errorf("%s: links to %q (%v), want %q", name, got, err, n.target)
			}
		case n.is(syscall.S_IFREG):
			got, err := os.ReadFile(filepath.Join(at, name))
			want, _ := io.ReadAll(tree.content(n))
			if !bytes.Equal(got, want) || uint64(st.Nlink) != uint64(n.links) {
				t.Errorf("%s: %d bytes, %d names (%v), want %d bytes, %d names",
					name, len(got), st.Nlink, err, len(want), n.links)
			}
		}
	})
	if err := filepath.WalkDir(at,
		func(string, fs.DirEntry, error) error { count--; return nil }); err != nil {
		t.Error(err)
	}
	if count != -1 { // the tree's Walk leaves out the mount point itself
		t.Errorf("the image holds %d names more than the tree", -1-count)
	}
}

func TestExportImport(t *testing.T) {
	tree, dir := newTree(t), t.TempDir()
	furnish(t, tree)
	if err := tree.Export("dir", dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "dir/sub/made"),
		[]byte("by a tool"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tree.Import(dir, "dir",
		func(name string) bool { return filepath.Base(name) == "made" }); err != nil {
		t.Fatal(err)
	}
	if b, err := tree.Read("link/made"); string(b) != "by a tool" {
		t.Errorf("got %q, %v", b, err)
	}
}

// FuzzLayer passes any bytes to Layer, and writes an image of the result.
func FuzzLayer(f *testing.F) {
	for _, entries := range [][]string{{"a=1", "b=>a", "c->a"}, {"d/", "d/.wh..wh..opq=", ".wh.d="},
		{"l->..", "l/l/x=1"}} {
		b, err := io.ReadAll(archive(f, entries...))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		tree, err := New(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		tree.Limit(1<<20, 1000, 1<<20)
		_ = tree.Layer(bytes.NewReader(b))
		name := filepath.Join(dir, fmt.Sprint("image-", os.Getpid()))
		if err := errors.Join(tree.WriteImage(name), os.Remove(name)); err != nil {
			t.Error(err)
		}
	})
}
