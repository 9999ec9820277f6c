//go:build !failpoint

package vf_test

// agentOfChaos: without failpoints there is none.
func agentOfChaos() bool { return false }
