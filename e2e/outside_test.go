package e2e

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api"
)

// What fastiov shows to those who only see it from outside.
const (
	nodeSocket    = "node.sock"    // of the agent, in its run directory
	invokerSocket = "invoker.sock" // of the invoker, in its run directory

	readyFD = "FASTIOV_READY_FD" // names a file on which a process says that it is ready
	bareVMM = "bare-vmm"         // the process of a bare sandbox

	helloAction = `{"exec":{"kind":"python:3",` +
		`"code":"def main(args): return {\"hello\": args.get(\"name\", \"world\")}"}}`
)

// keyFile is where the invoker of that state directory keeps the key that it starts with.
func keyFile(stateDir string) string { return filepath.Join(stateDir, "key") }

// readListen returns where the invoker of a run directory serves its API.
func readListen(t *testing.T, runDir string) string {
	t.Helper()
	addresses, err := os.ReadFile(filepath.Join(runDir, "listen"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(addresses))[0]
}

// dialNode connects to the agent of a run directory. It fails where none listens.
func dialNode(runDir string) (api.NodeClient, func(), error) {
	socket := filepath.Join(runDir, nodeSocket)
	probe, err := net.Dial("unix", socket)
	if err != nil {
		return nil, nil, err
	}
	probe.Close()
	return api.Dial(socket, api.Keys{})
}

// serverOf returns the pid and a pidfd of the process that listens on socket, until the test ends.
func serverOf(t *testing.T, socket string) (pid, process int) {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var peer *unix.Ucred
	var optErr error
	err = raw.Control(func(fd uintptr) {
		peer, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, optErr); err != nil {
		t.Fatal(err)
	}
	if process, err = unix.PidfdOpen(int(peer.Pid), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(process) })
	return int(peer.Pid), process
}
