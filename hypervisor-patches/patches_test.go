package hypervisorpatches_test

import (
	"testing"

	hypervisorpatches "github.com/fastiov/fastiov/hypervisor-patches"
	"github.com/fastiov/fastiov/rules/series"
)

func TestThePatches(t *testing.T) { series.Check(t, hypervisorpatches.Files, "qemu/10.0") }
