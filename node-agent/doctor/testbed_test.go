package doctor_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/fastiov/fastiov/node-agent/doctor"
	"github.com/fastiov/fastiov/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

func TestTestbedCanBeANode(t *testing.T) {
	testbed.Inside(t, testbed.Needs{NICs: 1}, func(t *testing.T) {
		kernels, _ := filepath.Glob("/boot/vmlinuz-*")
		if len(kernels) == 0 {
			t.Fatal("the host has no kernel in /boot")
		}
		report := doctor.Check(t.Context(),
			func(context.Context) (string, error) { return kernels[0], nil },
			func(context.Context) (string, error) { return "", errors.New("not asked for") })
		report.Print(t.Output())
		if err := report.Err(); err != nil {
			t.Error(err)
		}
	})
}
