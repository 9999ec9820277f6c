package build

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	kernelmod "github.com/fastiov/fastiov/kernel-mod"
)

// A Trial says how the kernel's patches apply to the newest source of its series.
type Trial struct {
	Pinned  string // the version that versions.yaml names
	Newest  string // that the mirror has
	Patches []TriedPatch
}

// A TriedPatch is a patch and what of it does not apply: hunks as FILE:LINE, and files with the
// reason why they were left out.
type TriedPatch struct {
	Name    string
	Rejects []string
}

// Rejected returns the number of patches that do not apply.
func (t Trial) Rejected() (n int) {
	for _, p := range t.Patches {
		if len(p.Rejects) > 0 {
			n++
		}
	}
	return n
}

// TryNewest applies the kernel's patches to the newest source that the mirror has. If that is the
// pinned one, it tries nothing.
func (b *Builder) TryNewest(ctx context.Context) (Trial, error) {
	say := func(format string, args ...any) { b.Say("kernel", format, args...) }
	p := patched{source: kernelSource, files: kernelmod.Files, series: kernelSeries}
	wanted := versions()
	t := Trial{Pinned: wanted.kernel}
	wanted.kernel = ""
	source, err := b.newest(ctx, say, p, wanted, t.Pinned)
	if err != nil {
		return t, err
	}
	if t.Newest = source.version; t.Newest == t.Pinned {
		return t, nil
	}
	if err := b.install(ctx, say, []tool{{"patch", "patch"}, {"xz", "xz-utils"}},
		kernelCommand); err != nil {
		return t, err
	}
	tree, err := os.MkdirTemp("", "fastiov-kernel-")
	if err != nil {
		return t, err
	}
	defer os.RemoveAll(tree)
	say("unpacking what the patches change of %s %s", source.name, source.version)
	if err := p.unpackChanged(ctx, tree, source); err != nil {
		return t, err
	}
	t.Patches, err = p.try(ctx, tree)
	return t, err
}

// newest returns the newest package of the source, and downloads it unless that is the version that
// is pinned.
func (b *Builder) newest(
	ctx context.Context, say func(string, ...any), p patched, wanted debian, pinned string,
) (deb, error) {
	a, release, err := b.apt(ctx, say, wanted)
	if err != nil {
		return deb{}, err
	}
	defer release()
	debs, err := a.resolve(ctx, []string{p.source})
	if err != nil {
		return deb{}, err
	}
	source, err := p.find(debs)
	if err == nil && source.version != pinned {
		_, err = b.download(ctx, say, a, []string{p.source})
	}
	return source, err
}

// try applies all patches, whatever does not apply of those before.
func (p patched) try(ctx context.Context, tree string) (tried []TriedPatch, err error) {
	for _, name := range p.patches() {
		rejects, err := p.applyOne(ctx, tree, name)
		if err != nil {
			return tried, err
		}
		tried = append(tried, TriedPatch{name, rejects})
	}
	return tried, nil
}

// unpackChanged unpacks the files of the source that the patches change.
func (p patched) unpackChanged(ctx context.Context, tree string, source deb) error {
	const unpack = `set -o pipefail
		dpkg-deb --fsys-tarfile "$1" | tar -xO "./usr/src/$2.tar.xz" | xz -dc`
	cmd := command(ctx, "bash", "-c", unpack, "unpack", source.file, p.source)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	copied := copyChanged(tree, out, p.changed())
	if copied != nil {
		_ = cmd.Process.Kill()
	}
	if err := cmd.Wait(); copied == nil && err != nil {
		copied = fmt.Errorf("%w: %s", err, lastLine(stderr.Bytes()))
	}
	if copied != nil {
		return fmt.Errorf("unpacking %s: %w", filepath.Base(source.file), copied)
	}
	return nil
}

// changed returns the files that the patches change.
func (p patched) changed() map[string]bool {
	files := map[string]bool{}
	for _, name := range p.patches() {
		patch, err := fs.ReadFile(p.files, p.series+"/"+name)
		if err != nil {
			panic(err) // it is part of the binary
		}
		for line := range strings.Lines(string(patch)) {
			if file, ok := strings.CutPrefix(strings.TrimSpace(line), "+++ b/"); ok {
				files[file] = true
			}
		}
	}
	return files
}

// copyChanged writes the wanted files of a tar archive, whose names have one folder more, to tree.
func copyChanged(tree string, archive io.Reader, wanted map[string]bool) error {
	root, err := os.OpenRoot(tree)
	if err != nil {
		return err
	}
	defer root.Close()
	for r := tar.NewReader(archive); ; {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		_, name, _ := strings.Cut(head.Name, "/")
		if head.Typeflag != tar.TypeReg || !wanted[name] {
			continue
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := root.WriteFile(name, content, 0o644); err != nil {
			return err
		}
	}
}
