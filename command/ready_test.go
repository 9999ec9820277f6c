package command

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAParentIsToldNothingAfterReady: the number of the closed pipe belongs to another file by
// then.
func TestAParentIsToldNothingAfterReady(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	spare, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer spare.Close()
	p := &parent{pipe[1]}
	p.tell(ready)
	if err := unix.Dup3(int(spare.Fd()), pipe[1], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[1])
	p.tell("too late")
	if content, err := os.ReadFile(spare.Name()); err != nil || len(content) > 0 {
		t.Errorf("%q, %v", content, err)
	}
	told := make([]byte, 16)
	if n, err := unix.Read(pipe[0], told); err != nil || string(told[:n]) != ready+"\n" {
		t.Errorf("the parent was told %q, %v", told[:max(n, 0)], err)
	}
}
