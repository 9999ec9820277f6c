package driver

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/examples/exampletest"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/cgroup"
	"github.com/fastiov/fastiov/node-agent/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	if exampletest.Main() {
		os.Exit(m.Run())
	}
}

// open returns the driver with its own root of cgroups, and what ends it.
func open(t *testing.T) (Driver, func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make cgroups")
	}
	command, err := exampletest.Command()
	if err != nil {
		t.Fatal(err)
	}
	root, err := cgroup.Open("fastiov-example-test")
	if err != nil {
		t.Fatal(err)
	}
	return Driver{command, root}, root.Remove
}

// spec is a sandbox at an address of its own.
func spec(n int) sandbox.Spec {
	address := netip.AddrFrom4([4]byte{127, 91, 0, byte(n + 1)})
	return sandbox.Spec{MemoryMiB: 256, NIC: &sandbox.NIC{Address: netip.PrefixFrom(address, 24)}}
}

func TestConformance(t *testing.T) {
	d, remove := open(t)
	defer remove()
	sandboxtest.Subject{
		Open:   func() (sandbox.Driver, func(), error) { return d, func() {}, nil },
		Spec:   spec,
		AtOnce: 4, Within: time.Minute,
		Log: "answered 200",
	}.Run(t)
}

// A program that ends by itself takes its sandbox with it, and the reason is told.
func TestTheProgramEnds(t *testing.T) {
	d, remove := open(t)
	defer remove()
	d.Command = []string{"/bin/sh", "-c", "exit 3"}
	_, err := start(t, d, spec(0))
	if err == nil || !strings.Contains(err.Error(), "its process has ended: exit status 3") {
		t.Errorf("%v", err)
	}
	if left := d.Leftovers(nil); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
	nowhere := spec(0)
	nowhere.NIC = nil
	if _, err := start(t, d, nowhere); err == nil {
		t.Error("a sandbox without an address was started")
	}
}

// The program does not run before its sandbox is written down: until then a shell reads its gate.
func TestNothingRunsThatNobodyWouldFind(t *testing.T) {
	d, remove := open(t)
	defer remove()
	d.Command = []string{"/bin/sleep", "1000"}
	full := errors.New("the journal is full")
	_, err := d.Start(t.Context(), named(t, spec(0)), &timeline.Timeline{},
		func(rec sandbox.Record) error {
			const readsStdin = "0 0x0 "
			for of := fmt.Sprintf("/proc/%d/", rec.PID); ; {
				name, err := os.ReadFile(of + "comm")
				if string(name) == "sleep\n" || err != nil {
					t.Errorf("process %d is %q, %v", rec.PID, name, err)
					return full
				}
				call, _ := os.ReadFile(of + "syscall")
				if strings.HasPrefix(string(call), readsStdin) {
					return full
				}
			}
		})
	if !errors.Is(err, full) {
		t.Errorf("%v", err)
	}
}

func named(t *testing.T, s sandbox.Spec) sandbox.Spec {
	s.ID, s.Dir = fmt.Sprintf("e%d", os.Getpid()), t.TempDir()
	return s
}

func start(t *testing.T, d Driver, s sandbox.Spec) (sandbox.Sandbox, error) {
	t.Helper()
	return d.Start(t.Context(), named(t, s), &timeline.Timeline{},
		func(sandbox.Record) error { return nil })
}
