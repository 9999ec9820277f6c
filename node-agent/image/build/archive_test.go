package build

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestAptNamesTheArchive(t *testing.T) {
	for targets, want := range map[string]archive{
		"": {},
		"http://a.example/ubuntu/\tUbuntu\tUbuntu\n": {},
		"http://a.example/debian/\tDebian Backports\tDebian Backports\n" +
			"http://s.example/sec/\tDebian\tDebian-Security\n" +
			"http://a.example/debian/\tDebian\tDebian\n" +
			"http://b.example/debian/\tDebian\tDebian\n": {
			"http://a.example/debian", "http://s.example/sec"},
		"cdrom:[Debian]/\tDebian\tDebian\nhttp://a.example/debian/\tDebian\tDebian\n": {
			"http://a.example/debian", "http://a.example/debian-security"},
		"http://s.example/sec/\tDebian\tDebian-Security\n": {},
	} {
		if got := aptsArchive(targets); got != want {
			t.Errorf("%q gives %q, want %q", targets, got, want)
		}
	}
}

// A machine of another distribution has apt without Debian; debootstrap names its archive there.
func TestDebootstrapNamesTheArchive(t *testing.T) {
	bin := t.TempDir()
	script := "#!/bin/sh\nprintf 'http://a.example/ubuntu/\\tUbuntu\\tUbuntu\\n'\n"
	if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	defer func(was string) { debootstrapScript = was }(debootstrapScript)
	debootstrapScript = filepath.Join(t.TempDir(), "debootstrap")
	if got, err := findArchive(t.Context()); !errors.Is(err, errNoArchive) {
		t.Errorf("without debootstrap: %q, %v", got, err)
	}
	content := "#!/bin/sh\nDEF_MIRROR=\"http://d.example/debian\"\n"
	if err := os.WriteFile(debootstrapScript, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
	want := archive{"http://d.example/debian", "http://d.example/debian-security"}
	if got, err := findArchive(t.Context()); err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}
