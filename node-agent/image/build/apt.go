package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fastiov/fastiov/node-agent/image"
)

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// An apt is a private instance of apt: index, packages, sources and preferences below dir.
type apt struct {
	dir     string
	archive archive
	wanted  debian
}

// userOf matches what a URI has before its host: apt takes a name and a password there.
var userOf = regexp.MustCompile(`//.*@`)

// prepare writes the configuration and brings the index up to date. A mirror that cannot be
// reached is an error only if there is no index.
func (a apt) prepare(ctx context.Context, say func(string, ...any)) error {
	if _, err := os.Stat(keyring); err != nil {
		return errNoKeyring
	}
	if err := a.write(ctx, a.sources()); err != nil {
		return err
	}
	stamp := filepath.Join(a.dir, "updated-"+image.Hash([]string{a.sources()}))
	info, err := os.Stat(stamp)
	if err == nil && time.Since(info.ModTime()) < indexAge {
		return nil
	}
	say("reading the package index of %s", userOf.ReplaceAllString(a.archive.main, "//"))
	if _, e := a.run(ctx, "apt-get", "update", "--quiet", "--error-on=any"); e != nil {
		if err != nil || ctx.Err() != nil {
			return e
		}
		say("using the package index of %s: %v", info.ModTime().Format(time.DateTime), e)
		return nil
	}
	return os.WriteFile(stamp, nil, 0o644)
}

// write writes the directories and the configuration.
func (a apt) write(ctx context.Context, sources string) error {
	for _, sub := range []string{"lists/partial", "archives/partial", "etc"} {
		if err := os.MkdirAll(filepath.Join(a.dir, sub), 0o755); err != nil {
			return err
		}
	}
	config, err := a.config(ctx)
	if err != nil {
		return err
	}
	files := map[string]string{
		"apt.conf": config, "status": "", "sources.list": sources, "preferences": a.preferences(),
	}
	for name, content := range files {
		path := filepath.Join(a.dir, name) // readable by nobody else: it may have a password in it
		err := errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chmod(path, 0o600))
		if err != nil {
			return err
		}
	}
	return nil
}

// config returns apt's configuration. Of the host's, it has the settings of the network, such as
// proxies, and the passwords of archives, and nothing else.
func (a apt) config(ctx context.Context) (string, error) {
	out, err := command(ctx, "apt-config", "dump", "Acquire").Output()
	if err != nil {
		return "", fmt.Errorf("apt-config: %w", err)
	}
	dir, methods := a.seen()
	return string(out) + fmt.Sprintf(`
Dir %[1]q;
Dir::State %[1]q;
Dir::State::status "%[1]s/status";
Dir::State::lists "%[1]s/lists";
Dir::Cache %[1]q;
Dir::Cache::archives "%[1]s/archives";
Dir::Etc "%[1]s/etc";
Dir::Etc::sourcelist "%[1]s/sources.list";
Dir::Etc::preferences "%[1]s/preferences";
Dir::Etc::netrc "/etc/apt/auth.conf";
Dir::Etc::netrcparts "/etc/apt/auth.conf.d";
Dir::Etc::parts "-";
Dir::Etc::sourceparts "-";
Dir::Etc::preferencesparts "-";
Dir::Etc::trustedparts "-";
APT::Architecture "amd64";
APT::Architectures "amd64";
APT::Install-Recommends "false";
APT::Sandbox::User %[2]q;
APT::Keep-Downloaded-Packages "true";
APT::Get::List-Cleanup "false"; # the index of another suite stays
Acquire::Languages "none";
Acquire::Retries "3";
Debug::NoLocking "true";
`, dir, methods), nil
}

// methodsUser is apt's own user for what speaks to mirrors. Root's files are often below a
// directory that nobody else may pass, so apt gets a mount namespace where they are seen in place
// of its own.
const methodsUser = "_apt"

// aptsPlace is a directory that every machine with apt has and everybody may pass.
const aptsPlace = "/var/cache/apt"

// apart reports whether methodsUser can read what a mirror sends: where root runs apt.
var apart = sync.OnceValue(func() bool {
	if _, err := user.Lookup(methodsUser); err != nil || os.Geteuid() != 0 {
		return false
	}
	return exec.Command("unshare", "--mount", "mount", "--bind", aptsPlace, aptsPlace).Run() == nil
})

// seen returns the directory that apt sees as its own, and the user whose rights its methods have.
func (a apt) seen() (dir, methods string) {
	if apart() {
		return aptsPlace, methodsUser
	}
	return a.dir, ""
}

// command is one of apt's tools, where it sees its directory.
func (a apt) command(ctx context.Context, tool string, args ...string) *exec.Cmd {
	dir, _ := a.seen()
	words := append([]string{tool}, args...)
	if dir != a.dir {
		const bind = `mount --bind "$0" "$1" && shift && exec "$@"`
		words = append([]string{"unshare", "--mount", "sh", "-c", bind, a.dir, dir}, words...)
	}
	cmd := command(ctx, words[0], words[1:]...)
	cmd.Env = append(os.Environ(), "APT_CONFIG="+filepath.Join(dir, "apt.conf"), "LC_ALL=C",
		"DEBIAN_FRONTEND=noninteractive")
	return cmd
}

func (a apt) sources() string {
	line := func(uri, suite string) string {
		line := fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, uri, suite)
		if a.wanted.sources {
			line += strings.Replace(line, "deb", "deb-src", 1)
		}
		return line
	}
	main, suite := a.archive.main, a.wanted.Suite
	return line(main, suite) + line(main, suite+"-updates") +
		line(a.archive.security, suite+"-security")
}

// preferences says which version of a package is taken.
func (a apt) preferences() string {
	var b strings.Builder
	pin := func(packages, version string) {
		fmt.Fprintf(&b, "Package: %s\nPin: version %s\nPin-Priority: 900\n\n", packages, version)
	}
	for _, name := range slices.Sorted(maps.Keys(a.wanted.Pins)) {
		pin("src:"+name, a.wanted.Pins[name])
	}
	if a.wanted.kernel != "" {
		pin(kernelSource, a.wanted.kernel)
	}
	return b.String()
}

// inst matches a line of apt's simulation: Inst libc6 (2.36-9 Debian:12/stable [amd64])
var inst = regexp.MustCompile(`(?m)^Inst (\S+) (?:\[\S+\] )?\((\S+) .*\[(\w+)\]\)`)

// resolve asks apt what installing packages on an empty machine takes.
func (a apt) resolve(ctx context.Context, packages []string) ([]deb, error) {
	out, err := a.run(ctx, "apt-get", append([]string{"install", "--simulate"}, packages...)...)
	if err != nil {
		return nil, err
	}
	var debs []deb
	for _, m := range inst.FindAllStringSubmatch(string(out), -1) {
		name, version, arch := m[1], m[2], m[3]
		file := fmt.Sprintf("%s_%s_%s.deb", name, strings.ReplaceAll(version, ":", "%3a"), arch)
		debs = append(debs, deb{name, version, filepath.Join(a.dir, "archives", file)})
	}
	slices.SortFunc(debs, func(x, y deb) int { return strings.Compare(x.name, y.name) })
	if len(debs) == 0 {
		return nil, fmt.Errorf("apt-get resolved %s to nothing", strings.Join(packages, " "))
	}
	return debs, nil
}

// source returns the version of the source of a package that is taken: that one if the mirror has
// it, else the newest.
func (a apt) source(ctx context.Context, name, version string) (taken string, err error) {
	out, err := a.run(ctx, "apt-cache", "showsrc", "--only-source", name)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(out)) {
		has, found := strings.CutPrefix(strings.TrimSpace(line), "Version: ")
		if !found {
			continue
		}
		if has == version {
			return version, nil
		}
		if taken == "" || newer(ctx, has, taken) {
			taken = has
		}
	}
	if taken == "" {
		return "", fmt.Errorf("the mirror has no source of %s", name)
	}
	return taken, nil
}

func newer(ctx context.Context, a, b string) bool {
	return command(ctx, "dpkg", "--compare-versions", a, "gt", b).Run() == nil
}

// bring runs an apt-get that writes to dir what it downloads.
func (a apt) bring(ctx context.Context, dir string, args ...string) error {
	cmd := a.command(ctx, "apt-get", append([]string{"--quiet"}, args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", args[0], err, complaint(out))
	}
	return nil
}

func (a apt) run(ctx context.Context, tool string, args ...string) ([]byte, error) {
	cmd := a.command(ctx, tool, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", tool, args[0], err, complaint(stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}

// complaint is apt's first error, or its last line if it names none.
func complaint(stderr []byte) string {
	for line := range strings.Lines(string(stderr)) {
		if text, ok := strings.CutPrefix(line, "E: "); ok {
			return strings.TrimSpace(text)
		}
	}
	return lastLine(stderr)
}
