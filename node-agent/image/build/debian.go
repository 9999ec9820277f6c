package build

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fastiov/fastiov"
	"gopkg.in/yaml.v3"

	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// indexAge bounds the age of a package index when something is to be fetched.
const indexAge = time.Hour

// A debian is a source of packages, as versions.yaml says.
type debian struct {
	Suite   string            `yaml:"suite"`
	Refresh string            `yaml:"refresh"`
	Pins    map[string]string `yaml:"pins"`

	kernel  string // the version of kernelSource, which decides about no other package
	sources bool   // also of what packages are made of
}

// versions returns where the packages of runtimes and the patched kernel's source come from.
func versions() debian {
	v := readVersions()
	v.Debian.kernel = v.Kernel
	return v.Debian
}

// hostVersions returns where QEMU, the packages of the testbed's host and the guest's kernel come
// from.
func hostVersions() debian { return readVersions().Host }

type pinned struct {
	Debian, Host debian
	Kernel       string
}

// readVersions reads versions.yaml, which is part of the binary.
func readVersions() (v pinned) {
	if err := yaml.Unmarshal(fastiov.VersionsYAML, &v); err != nil {
		panic("versions.yaml: " + err.Error())
	}
	return v
}

// inputs returns the part of versions.yaml that decides about packages.
func (d debian) inputs() string {
	b, err := yaml.Marshal(d)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// A deb is a downloaded package.
type deb struct{ name, version, file string }

// apt returns an apt with an index, which is this process's until released. It works in a directory
// of its own in the cache, with an empty record of what is installed, and touches nothing of the
// host's.
func (b *Builder) apt(
	ctx context.Context, say func(string, ...any), wanted debian,
) (a apt, release func(), err error) {
	if err := needTools(); err != nil {
		return apt{}, nil, err
	}
	dir, release, err := b.Packages(ctx)
	if err != nil {
		return apt{}, nil, err
	}
	a = apt{dir: dir, wanted: wanted}
	if a.archive, err = findArchive(ctx); err == nil {
		err = a.prepare(ctx, say)
	}
	if err != nil {
		release()
		return apt{}, nil, err
	}
	return a, release, nil
}

// fetch downloads packages and all they depend on, but not recommends, and returns them by name.
func (b *Builder) fetch(
	ctx context.Context, say func(string, ...any), wanted debian, packages []string,
) ([]deb, error) {
	a, release, err := b.apt(ctx, say, wanted)
	if err != nil {
		return nil, err
	}
	defer release()
	return b.download(ctx, say, a, packages)
}

func (b *Builder) download(
	ctx context.Context, say func(string, ...any), a apt, packages []string,
) ([]deb, error) {
	debs, err := a.resolve(ctx, packages)
	if err != nil {
		return nil, err
	}
	missing := slices.DeleteFunc(slices.Clone(debs), func(d deb) bool {
		_, err := os.Stat(d.file)
		return err == nil
	})
	say("downloading what is missing of %d packages", len(debs))
	args := append([]string{"install", "--download-only", "--yes", "--quiet"}, packages...)
	if _, err := a.run(ctx, "apt-get", args...); err != nil {
		return nil, err
	}
	for _, d := range debs {
		now := time.Now()
		if err := os.Chtimes(d.file, now, now); err != nil {
			return nil, fmt.Errorf("package %s was not downloaded: %w", d.name, err)
		}
	}
	for _, d := range missing {
		if file, err := os.Stat(d.file); err == nil {
			b.CountFetched("debian", file.Size())
		}
	}
	return debs, nil
}

func needTools() error {
	tools := map[string]string{"apt-get": "apt", "dpkg-deb": "dpkg", "depmod": "kmod"}
	for tool, pkg := range tools {
		if _, err := lookPath(tool); err != nil {
			return fmt.Errorf("%s is missing; install the package %s", tool, pkg)
		}
	}
	return nil
}

// lookPath finds a tool also where a user's PATH lacks the system directories.
func lookPath(tool string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, tool)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(tool)
}

// unpack lays packages over the tree.
func unpack(ctx context.Context, t *rootfs.Tree, debs []deb, keep func(name string) bool) error {
	for _, d := range debs {
		cmd := command(ctx, "dpkg-deb", "--fsys-tarfile", d.file)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		err = t.Unpack(bufio.NewReaderSize(out, 1<<20), keep)
		if err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			return fmt.Errorf("package %s: %w", d.name, err)
		}
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("package %s: %w: %s", d.name, err, lastLine(stderr.Bytes()))
		}
	}
	return nil
}

// without drops packages by name; a name that ends in * stands for all that begin so.
func without(debs []deb, omit ...string) []deb {
	return slices.DeleteFunc(slices.Clone(debs), func(d deb) bool {
		return slices.ContainsFunc(omit, func(pattern string) bool {
			prefix, wild := strings.CutSuffix(pattern, "*")
			return d.name == pattern || wild && strings.HasPrefix(d.name, prefix)
		})
	})
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

var errNoKeyring = errors.New("the archive keys of Debian are missing; " +
	"install the package debian-archive-keyring")
