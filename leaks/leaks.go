// Package leaks fails tests that leave goroutines behind. It waits longer than goleak does by
// itself: under load, a connection that a test has closed may need more than half a second to end.
package leaks

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

const patience = 10 * time.Second

// Main runs the package's tests and ends the process. TestMain calls it.
func Main(m interface{ Run() int }, options ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		if err := Find(options...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// None fails the test where goroutines are left.
func None(t testing.TB, options ...goleak.Option) {
	t.Helper()
	if err := Find(options...); err != nil {
		t.Error(err)
	}
}

// Find returns an error that has the goroutines that are left.
func Find(options ...goleak.Option) error { return find(patience, options...) }

func find(patience time.Duration, options ...goleak.Option) error {
	for begin := time.Now(); ; {
		err := goleak.Find(options...)
		if err == nil || time.Since(begin) > patience {
			return err
		}
	}
}
