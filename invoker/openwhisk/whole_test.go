package openwhisk

import (
	"os/signal"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// full has no file grow beyond that many bytes, as if the disk were full, while do runs.
func full(t *testing.T, bytes uint64, do func()) {
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	less := unix.Rlimit{Cur: bytes, Max: was.Max}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &less); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
			t.Fatal(err)
		}
	}()
	do()
}

// Of what a start makes, the next start finds nothing or all, also where the first could write only
// some of it.
func TestAStartLeavesNoFileCutShort(t *testing.T) {
	dir := t.TempDir()
	for name, load := range map[string]func() error{
		"a key": func() error {
			_, err := LoadKey("0.0.0.0:1", filepath.Join(dir, "api-key"))
			return err
		},
		"a certificate": func() error {
			_, err := LoadCertificate("", "", dir, "127.0.0.1:3443")
			return err
		},
		"a seal": func() error {
			_, err := LoadSeal(filepath.Join(dir, "seal"))
			return err
		},
	} {
		for _, room := range []uint64{8, 400} { // a certificate's key takes less
			full(t, room, func() {
				if err := load(); err == nil && room == 8 {
					t.Errorf("%s is kept without room", name)
				}
			})
			left, err := filepath.Glob(filepath.Join(dir, "*.*.*"))
			if len(left) > 0 || err != nil {
				t.Errorf("%s leaves %v, %v", name, left, err)
			}
		}
		for range 2 {
			if err := load(); err != nil {
				t.Errorf("%s after a start without room: %v", name, err)
			}
		}
	}
}
