package command

import (
	"slices"
	"testing"
)

// TestTheFlagsOfUpReachTheInvoker: whatever flag the invoker has, `up` hands on as it was given.
func TestTheFlagsOfUpReachTheInvoker(t *testing.T) {
	up := upCmd()
	given := []string{"--keep-alive=3m0s", "--wait=50s", "--name=a b", "--tls-cert=c,d",
		"--store=/x"}
	ofNode := []string{"--sandbox=bare", "--metrics=127.0.0.1:1", "--pf=igb,ixgbe", "--config=/c"}
	if err := up.ParseFlags(append(ofNode, given...)); err != nil {
		t.Fatal(err)
	}
	words := wordsOfInvoker(up, &nodeFlags{runDir: "/r", metrics: "127.0.0.1:1"})
	want := append(given, "--config=/dev/null", "--metrics=127.0.0.1:1", "--node=/r/node.sock",
		"--agent-metrics=/r/metrics.sock")
	slices.Sort(words)
	slices.Sort(want)
	if !slices.Equal(words, want) {
		t.Errorf("%q, want %q", words, want)
	}
	if err := invokerCmd().ParseFlags(words); err != nil {
		t.Error(err)
	}
}
