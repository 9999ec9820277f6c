package hypervisorpatches_test

import (
	"testing"

	hypervisorpatches "github.com/fastiov/fastiov/hypervisor-patches"
	"github.com/fastiov/fastiov/rules/series"
)

func TestThePatches(t *testing.T) {
	for _, dir := range []string{"guest-linux/6.12", "qemu/10.0"} {
		t.Run(dir, func(t *testing.T) { series.Check(t, hypervisorpatches.Files, dir) })
	}
}
