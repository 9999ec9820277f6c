package vf

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A holder is dead for sure, or it is not: one that cannot be asked counts as alive.
func TestDead(t *testing.T) {
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	running, err := Process(Bench, "b", child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	other := running
	other.StartTicks++
	netns := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(netns, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	device := running
	device.Kind = Device
	sandbox := other
	sandbox.Kind = Sandbox
	check := func(when string, want map[*Owner]bool) {
		t.Helper()
		for o, dead := range want {
			if o.Dead() != dead {
				t.Errorf("%s: %+v: dead is %t", when, o, o.Dead())
			}
		}
	}
	pod := Owner{Kind: Pod, Name: "p", Netns: netns}
	unasked := Owner{Kind: Pod, Name: "p", Netns: netns + "/below/a/file"}
	if os.Getuid() == 0 {
		if err := unix.Mount("/proc/self/ns/net", netns, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		first, other, later := PodIn("p", netns), PodIn("p", netns), PodIn("p", netns)
		other.NetnsInode++
		later.NetnsCookie++ // and has the inode of one that is gone
		check("in a namespace", map[*Owner]bool{&first: false, &other: true, &later: true})
		if err := unix.Unmount(netns, 0); err != nil {
			t.Fatal(err)
		}
		check("when a file without a namespace is left", map[*Owner]bool{&first: true})
	}
	check("while all run", map[*Owner]bool{
		&running: false, &device: false, &other: true, &pod: false, &unasked: false,
		&sandbox: false,
		{}:       false, {Kind: "later", Name: "x"}: false,
	})
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for !running.Dead() { // until it is a zombie
	}
	_ = child.Wait()
	if err := os.Remove(netns); err != nil {
		t.Fatal(err)
	}
	check("after their end", map[*Owner]bool{
		&running: true, &device: true, &pod: true, &sandbox: false,
	})
	if _, err := Process(Bench, "b", child.Process.Pid); err == nil {
		t.Error("a process that has ended became an owner")
	}
}

func TestOwnersNameWhatTheyLiveBy(t *testing.T) {
	for says, o := range map[string]Owner{
		"":                              {Kind: Sandbox, Name: "a"},
		`held by a ""`:                  {Name: "a"},
		`held by a "host"`:              {Kind: "host", Name: "a"},
		"the name of the sandbox":       {Kind: Sandbox},
		"the path of its network names": {Kind: Pod, Name: "a", Netns: "netns"},
		"lease of device a needs its p": {Kind: Device, Name: "a", PID: 1},
		"lease of bench a needs its pr": {Kind: Bench, Name: "a"},
	} {
		err := o.Check()
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", o, err, says)
		}
	}
}
