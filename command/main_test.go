package command

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/examples/exampletest"
)

// listensAndDies makes the test binary listen on the socket that it inherits, and end.
const listensAndDies = "FASTIOV_TEST_LISTENS"

func TestMain(m *testing.M) {
	if os.Getenv(listensAndDies) != "" {
		if err := unix.Listen(3, unix.SOMAXCONN); err != nil {
			os.Exit(1)
		}
		return
	}
	if exampletest.Main() {
		os.Exit(m.Run())
	}
}

// missing ends a test for want of a tool, which continuous integration has: there it fails.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("FASTIOV_CI") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}
