package build

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// A patched is a program of Debian's source, a series of our patches and a configuration.
type patched struct {
	recipe  string // how it is made, with a number that rises when that changes
	source  string // the package that has the source
	version string // of that package, as long as the mirror has it
	tree    string // the directory of its entry that the source is unpacked into
	files   fs.FS
	series  string // the directory in files of the patches, and of the file that orders them
	config  []byte
	tools   []tool // that it is compiled with
	command string // of fastiov, that makes it where tools may be installed

	// unpack writes the source to tree, which is not there yet.
	unpack func(ctx context.Context, b *Builder, p patched, tree string, say sayer) error
	// compile makes the program in dir, the entry, of the patched source in tree.
	compile func(ctx context.Context, dir, tree string, say sayer) error
}

// A sayer tells a step of a build.
type sayer = func(format string, args ...any)

// compiling is the room on the disk that a program's source, and what is made of it, may take.
const compiling = 4 << 30

// inputs returns the parts of the entry's key. In another order the same would be built again,
// which takes minutes.
func (p patched) inputs() []string {
	files := append(p.patches(), "series")
	slices.Sort(files)
	var content strings.Builder
	for _, name := range files {
		content.WriteString(contentOf(p.files, p.series+"/"+name))
	}
	return []string{p.recipe, p.version, string(p.config), content.String()}
}

// patches returns the names in the series, in order. A name may have a folder.
func (p patched) patches() (names []string) {
	series, err := fs.ReadFile(p.files, p.series+"/series")
	if err != nil {
		panic(err) // it is part of the binary
	}
	for line := range strings.Lines(string(series)) {
		if name := strings.TrimSpace(line); name != "" && !strings.HasPrefix(name, "#") {
			names = append(names, name)
		}
	}
	return names
}

// patched returns the entry called name, made of patched source.
func (b *Builder) patched(ctx context.Context, name string, p patched) (dir string, err error) {
	build := func(ctx context.Context, dir string, say func(string, ...any)) error {
		if err := b.install(ctx, say, p.tools, p.command); err != nil {
			return err
		}
		tree := filepath.Join(dir, p.tree)
		if err := p.unpack(ctx, b, p, tree, say); err != nil {
			return err
		}
		if err := p.apply(ctx, tree, say); err != nil {
			return err
		}
		return p.compile(ctx, dir, tree, say)
	}
	return b.GetLarge(ctx, name, p.inputs(), compiling, build)
}

// find finds the package of the source among debs.
func (p patched) find(debs []deb) (deb, error) {
	i := slices.IndexFunc(debs, func(d deb) bool { return d.name == p.source })
	if i < 0 {
		return deb{}, fmt.Errorf("apt resolved %s without itself", p.source)
	}
	return debs[i], nil
}

// unpackKernelSource is for a package that brings its source as usr/src/SOURCE.tar.xz.
func unpackKernelSource(
	ctx context.Context, b *Builder, p patched, tree string, say sayer,
) error {
	debs, err := b.fetch(ctx, say, versions(), []string{p.source})
	if err != nil {
		return err
	}
	source, err := p.find(debs)
	if err != nil {
		return err
	}
	return p.unpackDeb(ctx, tree, say, source)
}

func (p patched) unpackDeb(ctx context.Context, tree string, say sayer, source deb) error {
	p.unpacking(source.version, say)
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	const unpack = `set -o pipefail
		dpkg-deb --fsys-tarfile "$1" | tar -xO "./usr/src/$2.tar.xz" |
		tar -xJ --strip-components=1 -C "$3"`
	cmd := command(ctx, "bash", "-c", unpack, "unpack", source.file, p.source, tree)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("unpacking %s: %w: %s", filepath.Base(source.file), err, lastLine(out))
	}
	return nil
}

// unpacking tells which version it is.
func (p patched) unpacking(version string, say sayer) {
	if version != p.version {
		say("warning: the mirror no longer has %s %s; taking %s", p.source, p.version, version)
	}
	say("unpacking %s %s", p.source, version)
}

// apply applies the series.
func (p patched) apply(ctx context.Context, tree string, say func(string, ...any)) error {
	for _, name := range p.patches() {
		say("applying %s", name)
		rejects, err := p.applyOne(ctx, tree, name)
		if err != nil {
			return err
		}
		if len(rejects) > 0 {
			return fmt.Errorf("%s does not apply: %s", name, strings.Join(rejects, ", "))
		}
	}
	return nil
}

// applyOne applies a patch, each hunk exactly where it says or at an offset, without fuzz. What
// does not apply is left out, and returned as FILE:LINE.
func (p patched) applyOne(ctx context.Context, tree, name string) (rejects []string, err error) {
	patch, err := fs.ReadFile(p.files, p.series+"/"+name)
	if err != nil {
		return nil, err
	}
	cmd := command(ctx, "patch", "--strip=1", "--fuzz=0", "--batch", "--forward",
		"--no-backup-if-mismatch", "--reject-file=-", "--directory", tree)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdin = bytes.NewReader(patch)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil, nil
	}
	if rejects = rejected(string(out)); len(rejects) == 0 || cmd.ProcessState.ExitCode() != 1 {
		return nil, fmt.Errorf("%s does not apply: %w: %s", name, err, lastLine(out))
	}
	return rejects, nil
}

// patchSays matches the lines of patch that name a file, a hunk that does not apply, or a file that
// is left out.
var patchSays = regexp.MustCompile(`(?m)^(?:patching file (\S+)|\|\+\+\+ b/(\S+)|` +
	`The next patch would create the file (\S+),|Hunk #\d+ FAILED at (\d+)|` +
	`Reversed \(or previously applied\) (patch) detected|\d+ out of \d+ hunks? (ignored))`)

// rejected reads from what patch says the hunks that did not apply, as FILE:LINE, and the files
// that were left out, as FILE and the reason.
func rejected(said string) (rejects []string) {
	var file, why string
	for _, m := range patchSays.FindAllStringSubmatch(said, -1) {
		switch {
		case m[1] != "":
			file = m[1]
		case m[2] != "": // the head of a patch is quoted if its file is not found
			file, why = m[2], "is not there"
		case m[3] != "":
			file, why = m[3], "is there already"
		case m[4] != "":
			rejects = append(rejects, file+":"+m[4])
		case m[5] != "":
			why = "has it already"
		case m[6] != "":
			rejects = append(rejects, file+" "+why)
		}
	}
	return rejects
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

// runMake runs make as runCompiler does.
func runMake(ctx context.Context, dir string, see func(line string), args ...string) error {
	cmd := command(ctx, "make", append([]string{"-C", dir}, args...)...)
	cmd.Env = []string{"KBUILD_BUILD_USER=fastiov", "KBUILD_BUILD_HOST=fastiov",
		"KBUILD_BUILD_TIMESTAMP=1970-01-01"}
	return runCompiler(cmd, see)
}

// runCompiler shows see every line that the command prints, which starts compilers. When it fails,
// the error has the first line that says why. The command's environment is added to ours.
func runCompiler(cmd *exec.Cmd, see func(line string)) error {
	cmd.Env = slices.Concat(os.Environ(), []string{"LC_ALL=C"}, cmd.Env)
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
	lines.Buffer(nil, longestLine)
	for lines.Scan() {
		line := lines.Text()
		if why == "" && saysWhy.MatchString(line) {
			why = line
		}
		if see != nil {
			see(line)
		}
	}
	_, _ = io.Copy(io.Discard, out) // of a line that is longer: who writes it would wait
	if err := errors.Join(lines.Err(), cmd.Wait()); err != nil {
		name, last := filepath.Base(cmd.Args[0]), cmd.Args[len(cmd.Args)-1]
		return fmt.Errorf("%s %s: %w: %s", name, last, err, why)
	}
	return nil
}

// longestLine bounds a line of a compiler's: ninja prints the whole command of a failed step.
const longestLine = 1 << 20

// saysWhy matches the errors of compilers, make, configure and meson.
var saysWhy = regexp.MustCompile(`error:|ERROR:|\*\*\* `)
