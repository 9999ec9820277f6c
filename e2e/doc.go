// Package e2e holds the tests that run fastiov as its users do: by its command line and its
// servers, on this machine or in the testbed, with Prometheus, a browser, OpenWhisk's clients, k6
// and systemd.
//
// The test binary is the command: TestMain runs the command when a test starts this binary again.
// So the tested command has the build tags of the tests, and nothing has to be built first. A
// process that a test leaves running fails the run (left_test.go).
//
// The tests know only what any user of the command can see (outside_test.go).
package e2e
