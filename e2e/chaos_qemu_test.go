//go:build failpoint && qemu

package e2e

import (
	"testing"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/testbed"
)

func TestChaosOfTheAgentWithQEMU(t *testing.T) {
	testbed.Inside(t, testbed.Needs{NICs: 1, Images: []string{"python:3"},
		Env: []string{chaosSeed, chaosQEMU}}, func(t *testing.T) {
		c := newChaos(t, chaosQEMU, 20, "--sandbox", "qemu", "--images", testbed.ImagesDir,
			"--boot-deadline", "3m")
		c.request = &api.StartRequest{Image: "python:3", MemoryMib: 192}
		c.workers, c.turns = 2, 6
		c.run()
	})
}
