package vf_test

import (
	"testing"

	"github.com/fastiov/fastiov/testbed"
)

func TestMain(m *testing.M) {
	if agentOfChaos() {
		return
	}
	testbed.Main(m)
}
