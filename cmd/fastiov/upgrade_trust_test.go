//go:build trust

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/testbed"
)

// The last commit whose guests have no secret, and whose records no version.
const (
	formerCommit = "2ca486c"
	formerDir    = "/share/former"
	upgradeRun   = "/run/fastiov-upgrade"
)

// TestAnUpgradeEndsWhatAFormerVersionLeft starts sandboxes by an agent of the former version, kills
// that one, and starts this version's in its place: it ends them at once and says why, and each VF
// is idle again.
func TestAnUpgradeEndsWhatAFormerVersionLeft(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the former version")
	}
	needs := testbed.Needs{NICs: 1, Images: []string{"python:3"}}
	if os.Getenv("FASTIOV_TESTBED") != "" {
		needs.Files = former(t)
	}
	testbed.Inside(t, needs, func(t *testing.T) {
		t.Run("bare", func(t *testing.T) {
			upgrade(t, &api.StartRequest{MemoryMib: 64}, []string{"--sandbox", "bare"}, nil, nil)
		})
		t.Run("qemu", func(t *testing.T) {
			upgrade(t, &api.StartRequest{Image: "python:3", MemoryMib: 192},
				[]string{"--sandbox", "qemu", "--boot-deadline", "3m"},
				[]string{"--images", formerDir + "/images"}, []string{"--images", testbed.ImagesDir})
		})
	})
}

// former builds the former version, as files for the testbed.
func former(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	run := func(in, name string, args ...string) error {
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = in, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
		}
		return nil
	}
	if err := run(".", "git", "rev-parse", "--verify", formerCommit+"^{commit}"); err != nil {
		t.Skipf("the former version is not in this clone's history: %v", err)
	}
	if err := run(".", "git", "clone", "--quiet", "--shared", "--no-checkout", "../..", source); err != nil {
		t.Fatal(err)
	}
	for _, step := range [][]string{
		{"git", "checkout", "--quiet", formerCommit},
		{"go", "build", "-trimpath", "-o", dir + "/fastiov", "./cmd/fastiov"},
		{"go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir + "/fastiov-init", "./node-agent/guest/init"},
		{dir + "/fastiov", "image", "export", dir + "/images", "python:3"},
	} {
		if err := run(source, step[0], step[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{"former/fastiov": dir + "/fastiov"}
	for _, name := range []string{
		"guest/kernel", "guest/initrd", "runtimes/python_3/root.erofs", "runtimes/python_3/config.json",
	} {
		files["former/images/"+name] = dir + "/images/" + name
	}
	return files
}

func upgrade(t *testing.T, request *api.StartRequest, sandbox, old, fresh []string) {
	flags := append([]string{
		"agent", "--run-dir", upgradeRun, "--state-dir", t.TempDir(), "--metrics", "", "--pf", "igb",
		"--subnet", "10.0.2.0/24", "--first-address", "10.0.2.100",
		"--gateway", "10.0.2.2", "--dns", "10.0.2.3",
	}, sandbox...)
	defer must(t, "down", "--undo", "--run-dir", upgradeRun)
	before := exec.Command(formerDir+"/fastiov", append(flags, old...)...)
	agent := upgrading(t, before)
	var ids []string
	for n := range 2 {
		request.Id = fmt.Sprintf("former-%d", n)
		ids = append(ids, request.Id)
		agent.start(request)
	}
	agent.kill()
	pids := map[string]int{}
	for _, id := range ids {
		rec, err := startup.ReadRecord(filepath.Join(upgradeRun, "sandbox", id))
		if err == nil || rec.PID == 0 || syscall.Kill(rec.PID, 0) != nil {
			t.Fatalf("%s: the former version's record reads %+v, %v", id, rec, err)
		}
		text, _ := os.ReadFile(filepath.Join(upgradeRun, "sandbox", id, "record.json"))
		t.Logf("%s", text)
		pids[id] = rec.PID
	}

	began := time.Now()
	agent = upgrading(t, fastiov(t, append(flags, fresh...)...))
	t.Logf("the new agent serves after %v", time.Since(began).Round(time.Millisecond))
	for id, pid := range pids {
		if err := syscall.Kill(pid, 0); err == nil {
			t.Errorf("process %d of %s lives", pid, id)
		}
	}
	agent.allIdle()
	request.Id = "fresh"
	agent.start(request)
	if _, err := agent.node.Drain(t.Context(), &api.DrainRequest{Cancel: true}); err != nil {
		t.Error(err)
	}
	agent.allIdle()
	agent.kill()
	said := agent.log.String()
	for _, id := range ids {
		if !strings.Contains(said, "sandbox="+id+` err="it is of a former version`) {
			t.Errorf("of %s is said:\n%s", id, said)
		}
	}
}

// An upgraded agent is one that serves.
type upgraded struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  bytes.Buffer // to be read once it has ended
	node api.NodeClient
}

func upgrading(t *testing.T, cmd *exec.Cmd) *upgraded {
	t.Helper()
	a := &upgraded{t: t, cmd: cmd}
	cmd.Stdout, cmd.Stderr = &a.log, &a.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for late := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		node, hangUp, err := dialNode(upgradeRun)
		if err == nil {
			if _, err = node.Status(t.Context(), &api.StatusRequest{Brief: true}); err == nil {
				t.Cleanup(hangUp)
				a.node = node
				return a
			}
			hangUp() // the socket is the one of an agent that was killed
		}
		if time.Now().After(late) {
			a.kill()
			t.Fatalf("the agent does not serve: %v\n%s", err, a.log.String())
		}
	}
}

func (a *upgraded) kill() {
	_ = a.cmd.Process.Kill()
	_ = a.cmd.Wait()
}

func (a *upgraded) start(request *api.StartRequest) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), 3*time.Minute)
	defer cancel()
	request.WaitMs = 60_000
	if _, err := a.node.Start(ctx, request); err != nil {
		a.kill()
		a.t.Fatalf("%v\n%s", err, a.log.String())
	}
}

// allIdle waits until no sandbox, no leased VF and nothing else is left.
func (a *upgraded) allIdle() {
	a.t.Helper()
	var wrong []string
	for late := time.Now().Add(time.Minute); time.Now().Before(late); time.Sleep(20 * time.Millisecond) {
		st, err := a.node.Status(a.t.Context(), &api.StatusRequest{})
		if err != nil {
			a.t.Fatal(err)
		}
		wrong = st.Leftovers
		for _, s := range st.Sandboxes {
			wrong = append(wrong, "sandbox "+s.Id)
		}
		for _, v := range st.Vfs {
			if v.State != string(vf.Idle) {
				wrong = append(wrong, v.Bdf+" is "+v.State)
			}
		}
		if len(wrong) == 0 {
			return
		}
	}
	a.t.Errorf("left: %v", wrong)
}
