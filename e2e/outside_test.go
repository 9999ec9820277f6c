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

// What fastiov shows to those who see it only from outside.
const (
	nodeSocket    = "node.sock"    // the agent's, in its run directory
	invokerSocket = "invoker.sock" // the invoker's, in its run directory

	readyFD = "FASTIOV_READY_FD" // names a file to which a process writes when it is ready
	bareVMM = "bare-vmm"         // the process of a bare sandbox

	helloAction = `{"exec":{"kind":"python:3",` +
		`"code":"def main(args): return {\"hello\": args.get(\"name\", \"world\")}"}}`
)

// keyFile returns the file where the invoker of that state directory keeps its first key.
func keyFile(stateDir string) string { return filepath.Join(stateDir, "key") }

// readListen returns the address at which the invoker of a run directory serves its API.
func readListen(t *testing.T, runDir string) string {
	t.Helper()
	addresses, err := os.ReadFile(filepath.Join(runDir, "listen"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(addresses))[0]
}

// dialNode connects to the agent of a run directory. It fails if no agent listens.
func dialNode(runDir string) (api.NodeClient, func(), error) {
	socket := filepath.Join(runDir, nodeSocket)
	probe, err := net.Dial("unix", socket)
	if err != nil {
		return nil, nil, err
	}
	probe.Close()
	return api.Dial(socket, nil)
}

// serverOf returns the pid of the process that listens on socket, and a pidfd that is open until
// the test ends.
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
