//go:build trust

package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/testbed"
)

// TestARuntimeListensInsideAlone: however a runtime binds its port, it is reached on 127.0.0.1 and
// on no other address; without the kernel's program it is reached on the others too.
func TestARuntimeListensInsideAlone(t *testing.T) {
	testbed.Inside(t, testbed.Needs{}, func(t *testing.T) {
		const group = "/sys/fs/cgroup/inside"
		if err := os.Mkdir(group, 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(group)
		enter := func(group string) {
			pid := []byte(strconv.Itoa(os.Getpid()))
			if err := os.WriteFile(group+"/cgroup.procs", pid, 0); err != nil {
				t.Fatal(err)
			}
		}
		enter(group)
		defer enter("/sys/fs/cgroup")
		for _, address := range []string{"0.0.0.0", "::"} {
			if !reached(t, address, wire.RuntimePort, "127.0.0.2") {
				t.Errorf("%s, as a comparison, is not reached from outside", address)
			}
		}
		if err := staysInside(group, wire.RuntimePort); err != nil {
			t.Fatal(err)
		}
		for _, address := range []string{"0.0.0.0", "::", "127.0.0.2"} {
			if !reached(t, address, wire.RuntimePort, "127.0.0.1") {
				t.Errorf("a runtime on %s is not reached from inside", address)
			}
			for _, from := range []string{"127.0.0.2", "::1"} {
				if reached(t, address, wire.RuntimePort, from) {
					t.Errorf("a runtime on %s is reached on %s", address, from)
				}
			}
		}
		if !reached(t, "0.0.0.0", wire.RuntimePort+1, "127.0.0.2") {
			t.Error("another port is kept inside too")
		}
	})
}

// reached reports whether a listener on address is reached at another.
func reached(t *testing.T, address string, port int, at string) bool {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, fmt.Sprint(port)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", net.JoinHostPort(at, fmt.Sprint(port)))
	if err == nil {
		conn.Close()
	}
	return err == nil
}
