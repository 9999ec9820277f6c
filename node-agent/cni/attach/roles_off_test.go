//go:build !failpoint

package attach_test

// playedRole: without failpoints there is none.
func playedRole() bool { return false }
