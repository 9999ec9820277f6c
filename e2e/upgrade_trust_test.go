//go:build trust

package e2e

import (
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
	"github.com/fastiov/fastiov/testbed"
)

// The last commit whose guests have no secret and whose records have no version.
const (
	formerCommit = "2ca486c"
	formerDir    = "/share/former"
	upgradeRun   = "/run/fastiov-upgrade"
)

// An agent of the former version with sandboxes is killed and replaced by this version's, which
// ends them at once and says why; then each VF is idle again.
func TestAnUpgradeEndsWhatAFormerVersionLeft(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the former version")
	}
	needs := testbed.Needs{NICs: 1, Images: []string{"python:3"}}
	if os.Getenv("FASTIOV_TEST_TESTBED") != "" {
		needs.Files = former(t, formerCommit, filepath.Base(formerDir))
	}
	testbed.Inside(t, needs, func(t *testing.T) {
		t.Run("bare", func(t *testing.T) {
			upgrade(t, &api.StartRequest{MemoryMib: 64}, []string{"--sandbox", "bare"}, nil, nil)
		})
		t.Run("qemu", func(t *testing.T) {
			upgrade(t, &api.StartRequest{Image: "python:3", MemoryMib: 192},
				[]string{"--sandbox", "qemu", "--boot-deadline", "3m"},
				[]string{"--images", formerDir + "/images"},
				[]string{"--images", testbed.ImagesDir})
		})
	})
}

// former builds the version of a commit, and returns its files for that folder of the testbed.
func former(t *testing.T, commit, folder string) map[string]string {
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
	if err := run(".", "git", "rev-parse", "--verify", commit+"^{commit}"); err != nil {
		t.Skipf("the former version is not in this clone's history: %v", err)
	}
	if err := run(".", "git", "clone", "--quiet", "--shared", "--no-checkout", "..",
		source); err != nil {
		t.Fatal(err)
	}
	for _, step := range [][]string{
		{"git", "checkout", "--quiet", commit},
		{"go", "build", "-trimpath", "-o", dir + "/fastiov", "./cmd/fastiov"},
		{"go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir + "/fastiov-init", "./node-agent/guest/init"},
		{dir + "/fastiov", "image", "export", dir + "/images", "python:3"},
	} {
		if err := run(source, step[0], step[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{folder + "/fastiov": dir + "/fastiov"}
	for _, name := range []string{
		"guest/kernel", "guest/initrd", "runtimes/python_3/root.erofs",
		"runtimes/python_3/config.json",
	} {
		files[folder+"/images/"+name] = dir + "/images/" + name
	}
	const launcher = "node-agent/sandbox/jail/vmm" // only in versions that have one
	if _, err := os.Stat(filepath.Join(source, launcher)); err == nil {
		if err := run(source, "go", "build", "-o", dir+"/fastiov-vmm", "./"+launcher); err != nil {
			t.Fatal(err)
		}
		files[folder+"/fastiov-vmm"] = dir + "/fastiov-vmm"
	}
	return files
}

func upgrade(t *testing.T, request *api.StartRequest, sandbox, old, fresh []string) {
	flags := append([]string{
		"agent", "--run-dir", upgradeRun, "--state-dir", t.TempDir(), "--metrics", "", "--pf",
		"igb",
		"--subnet", "10.0.2.0/24", "--first-address", "10.0.2.100",
		"--gateway", "10.0.2.2", "--dns", "10.0.2.3",
	}, sandbox...)
	defer must(t, "down", "--undo", "--run-dir", upgradeRun)
	before := exec.Command(formerDir+"/fastiov", append(flags, old...)...)
	agent := serveAgent(t, upgradeRun, before)
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
	agent = serveAgent(t, upgradeRun, fastiov(t, append(flags, fresh...)...))
	t.Logf("the new agent serves after %v", time.Since(began).Round(time.Millisecond))
	agent.settled()
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
