package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An agent follows its file when it is sent SIGHUP, and goes on where that has a mistake. Commands
// find the node by the file, with a mistake or without.
func TestAnAgentFollowsItsFile(t *testing.T) {
	dir := t.TempDir()
	file, log := filepath.Join(dir, "fastiov.yaml"), filepath.Join(dir, "log")
	write := func(level, more string) {
		t.Helper()
		text := "node:\n  sandbox: sim\n  metrics: \"\"\n  run-dir: " + dir + "/run\n" +
			"  state-dir: " + dir + "\nlog:\n  level: " + level + "\n" + more
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("error", "")
	agent := fastiov(t, "agent", "--config", file)
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	agent.Stderr = out
	serving(t, agent)
	hangUp := func(want ...string) {
		t.Helper()
		if err := agent.Process.Signal(unix.SIGHUP); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			said, err := os.ReadFile(log)
			for len(want) > 0 && bytes.Contains(said, []byte(want[0])) {
				want = want[1:]
			}
			if len(want) == 0 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("not said: %s (%v), in\n%s", want, err, said)
			}
		}
	}
	found := func() {
		t.Helper()
		if said := must(t, "status", "--config", file); !strings.Contains(said, "sim") {
			t.Errorf("%s", said)
		}
	}
	found()
	write("info", "  format: json\n") // what it says at this level, it says since it has followed
	hangUp("was reloaded", "key=log.format")
	write("info", "node: {}\nnodes: {}\n") // two mistakes
	hangUp("was not reloaded", "node is in line 1 already")
	found()
	said, err := fastiov(t, "agent", "--config", file).CombinedOutput()
	if err == nil || bytes.Count(said, []byte(file)) != 2 {
		t.Errorf("an agent with a mistake: %v, %s", err, said)
	}
}

// What `up` has in force, and why, is shown before it runs. A password has no place in it, and is
// shown to nobody.
func TestConfigShowsWhereValuesComeFrom(t *testing.T) {
	file := fileOf(t, "invoker: {store: 'redis://127.0.0.1:1'}\nnode: {vlan: 7}\n")
	cmd := fastiov(t, "config", "--config", file, "--memory", "512")
	cmd.Env = append(cmd.Env, "FASTIOV_NODE_SANDBOX=sim", "FASTIOV_NODE_VLNA=8")
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err, complaint.String())
	}
	for _, want := range []string{
		"store: redis://127.0.0.1:1", "# " + file + ":1", "vlan: 7", "# " + file + ":2",
		"sandbox: sim", "# FASTIOV_NODE_SANDBOX", "memory: 512", "# --memory", "pause-after: 10s",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	want := "fastiov: warning: FASTIOV_NODE_VLNA configures nothing;" +
		" the nearest is FASTIOV_NODE_VLAN\n"
	if complaint.String() != want {
		t.Errorf("%q, want %q", complaint.String(), want)
	}

	file = fileOf(t, "invoker: {store: 'redis://:hunter2@127.0.0.1:1'}\n")
	said, err := fastiov(t, "config", "--config", file).CombinedOutput()
	if err == nil || bytes.Contains(said, []byte("hunter2")) ||
		!bytes.Contains(said, []byte("--store-password-file")) {
		t.Errorf("a password in the file: %v, %s", err, said)
	}
}
