package openwhisk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// made has, by name, the files that a start makes in a folder, or finds there.
var made = map[string]func(dir string) error{
	"a key": func(dir string) error {
		_, err := LoadKey("0.0.0.0:1", filepath.Join(dir, "api-key"))
		return err
	},
	"a certificate": func(dir string) error {
		_, err := LoadCertificate("", "", dir, "127.0.0.1:3443")
		return err
	},
	"a seal": func(dir string) error {
		_, err := LoadSeal(filepath.Join(dir, "seal"))
		return err
	},
}

// madeFull names what a child of the tests makes while no file may grow beyond so many bytes, as if
// the disk were full. In this process the limit would hold for what testing writes, too.
const madeFull, madeIn, madeRoom = "FASTIOV_TEST_MADE", "FASTIOV_TEST_IN", "FASTIOV_TEST_ROOM"

func makeFull() {
	signal.Ignore(unix.SIGXFSZ)
	room, err := strconv.ParseUint(os.Getenv(madeRoom), 10, 64)
	if err == nil {
		err = unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: room, Max: room})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if err := made[os.Getenv(madeFull)](os.Getenv(madeIn)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Of what a start makes, the next start finds nothing or all, also where the first could write only
// some of it.
func TestAStartLeavesNoFileCutShort(t *testing.T) {
	dir := t.TempDir()
	for name, load := range made {
		for _, room := range []int{8, 400} { // a certificate's key takes less
			child := exec.Command("/proc/self/exe")
			child.Env = append(os.Environ(), madeFull+"="+name, madeIn+"="+dir,
				fmt.Sprint(madeRoom, "=", room))
			out, err := child.CombinedOutput()
			var failed *exec.ExitError
			if err != nil && (!errors.As(err, &failed) || failed.ExitCode() != 1 ||
				!strings.Contains(string(out), unix.EFBIG.Error())) {
				t.Fatalf("%v: %s", err, out)
			}
			if err == nil && room == 8 {
				t.Errorf("%s is kept without room", name)
			}
			left, err := filepath.Glob(filepath.Join(dir, "*.*.*"))
			if len(left) > 0 || err != nil {
				t.Errorf("%s leaves %v, %v", name, left, err)
			}
		}
		for range 2 {
			if err := load(dir); err != nil {
				t.Errorf("%s after a start without room: %v", name, err)
			}
		}
	}
}
