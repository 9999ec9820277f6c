package bridge

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
)

// What the kernel sets when it is told to forward is put back, and what was set otherwise, too.
func TestSettingsArePutBack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	world(t)
	const of = "/proc/sys/net/ipv4/conf/"
	want := map[string]string{of + "uplink/forwarding": "1", of + "lo/forwarding": "0",
		of + "default/forwarding": "0", redirects: "0"}
	for file, value := range want {
		if err := os.WriteFile(file, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	defer func() { _ = os.WriteFile(redirects, []byte("1"), 0) }()
	dir := filepath.Join(t.TempDir(), "bridge")
	b := open(t, config(dir))
	if is, err := os.ReadFile(of + "lo/forwarding"); err != nil || is[0] != '1' {
		t.Errorf("(a control) the kernel leaves it as it is: %q, %v", is, err)
	}
	g := plug(t, b, "a")
	b.Close()
	b = open(t, config(dir)) // another agent, which found it forwarding
	g.leave(b)
	b.Close()
	nothingLeft(t, dir)
	for file, value := range want {
		if is, err := os.ReadFile(file); err != nil || string(is[:1]) != value {
			t.Errorf("%s is %q, %v, and was %s", file, is, err, value)
		}
	}
}

// Where no rules can be written, the host does not forward, and keeps no bridge.
func TestWithoutRulesNothingForwards(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	tool(t, "nft list ruleset")
	owner := exec.Command("nft", "-i")
	in, err := owner.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	defer owner.Wait()
	defer in.Close()
	if _, err := io.WriteString(in, "add table ip fastiov0 { flags owner; }\n"); err != nil {
		t.Fatal(err)
	}
	soon(t, "their table", func() error {
		return exec.Command("nft", "list", "table", "ip", "fastiov0").Run()
	})
	dir := filepath.Join(t.TempDir(), "bridge")
	if b, err := Open(config(dir)); err == nil {
		b.Close()
		t.Fatal("it opens without rules")
	}
	if is, err := os.ReadFile(forwardIP); err != nil || is[0] != '0' {
		t.Errorf("the host forwards: %q, %v", is, err)
	}
	if _, err := netlink.LinkByName("fastiov0"); err == nil {
		t.Error("the bridge is there")
	}
	in.Close()
	_ = owner.Wait()
	if err := Undo(dir); err != nil {
		t.Errorf("later: %v", err)
	}
	nothingLeft(t, dir)
}
