package build

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// A patched is a program of Debian's source, a series of our patches and a configuration.
type patched struct {
	recipe string // how it is made, with a number that rises when that changes
	pin    string // pins the source in versions.yaml
	source string // the package that brings the source, as usr/src/SOURCE.tar.xz
	tree   string // the directory of its entry that the source is unpacked into
	files  fs.FS
	series string // the directory in files of the patches, and of the file that orders them
	config []byte
	tools  []tool // that it is compiled with

	// compile makes the program in dir, the entry, of the patched source in tree.
	compile func(ctx context.Context, dir, tree string, say func(string, ...any)) error
}

// inputs returns the parts of the entry's key. In another order the same would be built again,
// which takes minutes.
func (p patched) inputs() []string {
	patches := contentOf(p.files, p.series)
	return []string{p.recipe, versions().Pins[p.pin], string(p.config), patches}
}

// patched returns the entry called name, made of patched source.
func (b *Builder) patched(ctx context.Context, name string, p patched) (dir string, err error) {
	build := func(ctx context.Context, dir string, say func(string, ...any)) error {
		if err := install(ctx, say, p.tools); err != nil {
			return err
		}
		debs, err := b.fetch(ctx, say, []string{p.source})
		if err != nil {
			return err
		}
		tree := filepath.Join(dir, p.tree)
		if err := p.unpack(ctx, tree, say, debs); err != nil {
			return err
		}
		if err := p.apply(ctx, tree, say); err != nil {
			return err
		}
		return p.compile(ctx, dir, tree, say)
	}
	return b.Get(ctx, name, p.inputs(), build)
}

func (p patched) unpack(
	ctx context.Context, tree string, say func(string, ...any), debs []deb,
) error {
	for _, d := range debs {
		if d.name != p.source {
			continue
		}
		say("unpacking %s %s", d.name, d.version)
		if err := os.Mkdir(tree, 0o755); err != nil {
			return err
		}
		const unpack = `set -o pipefail
			dpkg-deb --fsys-tarfile "$1" | tar -xO "./usr/src/$2.tar.xz" |
			tar -xJ --strip-components=1 -C "$3"`
		cmd := command(ctx, "bash", "-c", unpack, "unpack", d.file, p.source, tree)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("unpacking %s: %w: %s", filepath.Base(d.file), err, lastLine(out))
		}
		return nil
	}
	return fmt.Errorf("%s was not downloaded", p.source)
}

// apply applies the series, each patch exactly where it says.
func (p patched) apply(ctx context.Context, tree string, say func(string, ...any)) error {
	series, err := fs.ReadFile(p.files, p.series+"/series")
	if err != nil {
		return err
	}
	for name := range strings.Lines(string(series)) {
		name = strings.TrimSpace(name)
		if name == "" || strings.HasPrefix(name, "#") {
			continue
		}
		patch, err := fs.ReadFile(p.files, p.series+"/"+name)
		if err != nil {
			return err
		}
		say("applying %s", name)
		cmd := command(ctx, "patch",
			"--strip=1", "--fuzz=0", "--batch", "--forward", "--directory", tree)
		cmd.Stdin = bytes.NewReader(patch)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s does not apply: %w: %s", name, err, lastLine(out))
		}
	}
	return nil
}

// contentOf returns the names and the content of a file, or of all files of a directory.
func contentOf(files fs.FS, name string) string {
	var all strings.Builder
	err := fs.WalkDir(files, name, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(files, path)
		fmt.Fprintf(&all, "%s %d\n%s", path, len(b), b)
		return err
	})
	if err != nil {
		panic(err) // it is part of the binary
	}
	return all.String()
}

// runMake shows see every line that make prints. When make fails, the error has the first line that
// says why.
func runMake(ctx context.Context, dir string, see func(line string), args ...string) error {
	cmd := command(ctx, "make", append([]string{"-C", dir}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "KBUILD_BUILD_USER=fastiov",
		"KBUILD_BUILD_HOST=fastiov", "KBUILD_BUILD_TIMESTAMP=1970-01-01")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	cmd.SysProcAttr.Setpgid = true // its compilers end with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		return err
	}
	var why string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		line := lines.Text()
		if why == "" && (strings.Contains(line, "error:") || strings.Contains(line, "*** ")) {
			why = line
		}
		if see != nil {
			see(line)
		}
	}
	if err := errors.Join(lines.Err(), cmd.Wait()); err != nil {
		return fmt.Errorf("make %s: %w: %s", args[len(args)-1], err, why)
	}
	return nil
}
