package build

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// onlyPrograms makes PATH a directory of shell scripts.
func onlyPrograms(t *testing.T, scripts map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, script := range scripts {
		content := "#!/bin/sh\n" + script
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	return dir
}

// aptGet notes what it is asked for, and brings the command fastiov-flex as apt-get would.
const aptGet = `
echo "$DEBIAN_FRONTEND $*" >>"${0%/*}/asked"
flex="${0%/*}/fastiov-flex"
case "$*" in *install*) echo "#!/bin/sh" >"$flex"; /bin/chmod +x "$flex" ;; esac`

const sudo = `shift; exec "$@"`

func TestMissingToolsAreInstalled(t *testing.T) {
	dir := onlyPrograms(t, map[string]string{"apt-get": aptGet, "sudo": sudo, "here": ""})
	header := filepath.Join(dir, "here")
	tools := []tool{{"here", "here"}, {header, "libhere-dev"}, {"fastiov-flex", "flex"}}
	var said []string
	say := func(format string, _ ...any) { said = append(said, format) }
	for range 2 { // the second time nothing is missing
		if err := new(Builder).install(t.Context(), say, tools, ""); err != nil {
			t.Fatal(err)
		}
	}
	asked, err := os.ReadFile(filepath.Join(dir, "asked"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(asked)), "\n")
	if len(lines) != 2 || !strings.HasSuffix(lines[0], " update") || len(said) != 1 ||
		!strings.HasSuffix(lines[1], " install --yes --no-install-recommends flex") {
		t.Errorf("apt-get was asked for %q, said %q", lines, said)
	}
	if !strings.HasPrefix(lines[1], "noninteractive ") {
		t.Errorf("apt-get may ask questions: %q", lines[1])
	}
}

func TestToolsThatCannotBeInstalledAreNamed(t *testing.T) {
	tools := []tool{{"fastiov-flex", "flex"}, {"/nonexistent/libelf.h", "libelf-dev"}}
	for _, c := range []struct {
		name    string
		scripts map[string]string
		want    string
	}{
		{"no apt", nil, "flex libelf-dev"},
		{"apt fails", map[string]string{"apt-get": "echo E: no space left >&2; exit 100", "sudo": sudo},
			"installing flex libelf-dev: apt-get: exit status 100: no space left"},
		{"apt brings too little", map[string]string{"apt-get": aptGet, "sudo": sudo},
			"libelf-dev is installed, but"},
	} {
		t.Run(c.name, func(t *testing.T) {
			onlyPrograms(t, c.scripts)
			err := new(Builder).install(t.Context(), noSay, tools, "")
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("%v; want one line with %q", err, c.want)
			}
		})
	}
}

func noSay(string, ...any) {}

// TestANodeInstallsNothing: apt is there, and is not asked.
func TestANodeInstallsNothing(t *testing.T) {
	dir := onlyPrograms(t, map[string]string{"apt-get": aptGet, "sudo": sudo, "here": ""})
	b, err := Open(t.TempDir(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	b.NoInstall = true
	_, err = b.leanBase(t.Context())
	const want = "missing here: gcc "
	const remedy = "; install those packages, or run `fastiov image build guest-lean` once"
	if err == nil || !strings.Contains(err.Error(), want) ||
		!strings.HasSuffix(err.Error(), remedy) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v; want one line with %q and %q", err, want, remedy)
	}
	if asked, err := os.ReadFile(filepath.Join(dir, "asked")); err == nil {
		t.Errorf("apt-get was asked for %q", asked)
	}
	if err := b.install(t.Context(), noSay, []tool{{"here", "here"}}, ""); err != nil {
		t.Errorf("nothing is missing: %v", err)
	}
}
