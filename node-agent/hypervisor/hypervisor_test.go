package hypervisor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// script makes a program of the shell.
func script(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+content+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// inPath makes PATH a directory with that QEMU, or without any.
func inPath(t *testing.T, content string) (path string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	path = filepath.Join(dir, Name)
	if content != "" {
		script(t, path, content)
	}
	return path
}

func unreachable(context.Context) (string, error) { return "", errors.New("no archive") }

// TestThePrefixReplacesWhatIsNotGoodEnough lets the loader of the prefix be a script that notes how
// it was called.
func TestThePrefixReplacesWhatIsNotGoodEnough(t *testing.T) {
	for _, c := range []struct{ says, why string }{
		{"echo 'QEMU emulator version 10.0.6'", ""},
		{"echo 'QEMU emulator version 10.0.13 (Debian 1:10.0.13)'", ""},
		{"echo 'QEMU emulator version 10.1.2'", ""},
		{"echo 'QEMU emulator version 10.2.0'", ""},
		{"echo 'QEMU emulator version 11.0.0'", ""},
		{"echo 'QEMU emulator version 10.0.5'", "version 10.0.5, too old"},
		{"echo 'QEMU emulator version 10.1.0'", "version 10.1.0, too old"},
		{"echo 'QEMU emulator version 10.1.1'", "version 10.1.1, too old"},
		{"echo 'QEMU emulator version 9.2.4'", "version 9.2.4, too old"},
		{"echo 'QEMU emulator version 7.2.17 (Debian 1:7.2)'", "version 7.2.17, too old"},
		{"echo hello", "no known version"},
		{"echo broken >&2; exit 1", "does not run: broken"},
		{"", "no qemu-system-x86_64 in PATH"},
	} {
		path := inPath(t, c.says)
		q, err := Find(t.Context(), unreachable)
		if c.why == "" {
			if err != nil || q.Root != "/" || q.Path() != path ||
				!slices.Equal(q.Command("-S"), []string{path, "-S"}) {
				t.Errorf("%q: %+v, %v", c.says, q, err)
			}
			continue
		}
		var missing *Missing
		if !errors.As(err, &missing) || !strings.Contains(err.Error(), c.why) ||
			!strings.Contains(err.Error(), "no archive") ||
			!strings.HasSuffix(err.Error(), "; "+Remedy) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", c.says, err)
		}
		prefix := t.TempDir()
		script(t, prefix+Loader, `[ "$*" = "--inhibit-cache --library-path `+prefix+Libraries+" "+
			prefix+Program+" -L "+prefix+"/usr/share/qemu -L "+prefix+
			`/usr/share/seabios -version" ] && echo 'QEMU emulator version 10.0.13'`)
		q, err = Find(t.Context(), func(context.Context) (string, error) { return prefix, nil })
		if err != nil || q.Root != prefix || q.Version != "10.0.13" || q.Program != Program {
			t.Errorf("%q: %+v, %v", c.says, q, err)
		}
	}
}

func TestThePrefixMayBeBroken(t *testing.T) {
	inPath(t, "")
	dir := t.TempDir()
	_, err := Find(t.Context(), func(context.Context) (string, error) { return dir, nil })
	if err == nil || !strings.Contains(err.Error(), dir+Program+" does not run") {
		t.Error(err)
	}
}

func TestACancelledSearchIsNoLackOfQEMU(t *testing.T) {
	inPath(t, "")
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	_, err := Find(ctx, func(context.Context) (string, error) {
		cancel(enough)
		return "", errors.New("apt was killed")
	})
	if !errors.Is(err, enough) {
		t.Error(err)
	}
}

func TestTheOwnFirmwareIsWhereItSays(t *testing.T) {
	dir := t.TempDir()
	inPath(t, `[ "$1" = -L ] && echo "`+dir+`
/nonexistent" || echo 'QEMU emulator version 10.0.6'`)
	q, err := Find(t.Context(), unreachable)
	if err != nil || !slices.Equal(q.Firmware, []string{dir}) {
		t.Errorf("%+v, %v", q, err)
	}
}

// TestAPrefixMayHaveNoLoader: a program that was linked statically starts by itself.
func TestAPrefixMayHaveNoLoader(t *testing.T) {
	prefix := t.TempDir()
	script(t, prefix+Program, `[ "$*" = "-L `+prefix+"/usr/share/qemu -L "+prefix+
		`/usr/share/seabios -version" ] && echo 'QEMU emulator version 10.0.13'`)
	q, err := In(t.Context(), prefix)
	if err != nil || q.Path() != prefix+Program || q.Version != "10.0.13" {
		t.Errorf("%+v, %v", q, err)
	}
}
