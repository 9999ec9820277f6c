//go:build containers || conformance

package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const netted = "FASTIOV_TEST_NETTED"

// inNetwork runs body in a process that has a network of its own.
func inNetwork(t *testing.T, body func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make containers")
	}
	if os.Getenv(netted) != "" {
		if err := up("lo", "127.0.0.1/8"); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		body()
		return
	}
	within := 15 * time.Minute
	if end, has := t.Deadline(); has {
		within = time.Until(end)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^"+t.Name()+"$",
		"-test.v", "-test.timeout", within.String())
	cmd.Env = append(os.Environ(), netted+"=1")
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET,
		Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
}

func up(device, address string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	return netlink.AddrAdd(link, addr)
}

// shortDir returns a directory that the invoker reaches, by a path short enough for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fastiov-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// nothingOf checks that the host has nothing of a node with that run directory.
func nothingOf(t *testing.T, run string) {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Error(err)
	}
	for _, link := range links {
		if name := link.Attrs().Name; name != "lo" && name != "uplink" && name != "sit0" {
			t.Errorf("left over: device %s", name)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(mounts, []byte(run)) {
		t.Errorf("left over: mounts of %s, %v", run, err)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/fio*", "/sys/fs/cgroup/*/fio*",
		run + "/bridge", run + "/containers", run + "/sandbox/*"} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("left over: %v", left)
		}
	}
	if is, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward"); err != nil || is[0] != '0' {
		t.Errorf("left over: ip_forward is %q, %v", is, err)
	}
}
