//go:build trust

package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/sandbox/sandboxtest"
	"github.com/fastiov/fastiov/testbed"
)

const (
	replacedFrom = "FASTIOV_TEST_UPGRADE_FROM" // a commit
	replacedDir  = "/share/replaced"
	replacedRun  = "/run/fastiov-replaced"

	// The agent of this commit adopts before it serves, and knows no frames. Its guests are like
	// those of today.
	replacedCommit = "229358e"
)

// An agent of a former version with seven sandboxes is killed and replaced by this version's, which
// stops two of them and starts two; then it is replaced by the former version's again, and that by
// this version's. Each adopts all seven. If another commit is asked for, it may end some, and its
// log says why.
func TestAnAgentIsReplacedAndReplacedBack(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a former version")
	}
	commit := cmp.Or(os.Getenv(replacedFrom), replacedCommit)
	needs := testbed.Needs{NICs: 1, Images: []string{"python:3"}, Env: []string{replacedFrom}}
	if os.Getenv("FASTIOV_TEST_TESTBED") != "" {
		needs.Files = former(t, commit, "replaced")
	}
	testbed.Inside(t, needs, func(t *testing.T) {
		t.Run("bare", func(t *testing.T) {
			replace(t, &api.StartRequest{MemoryMib: 64}, []string{"--sandbox", "bare"}, nil, nil)
		})
		t.Run("qemu", func(t *testing.T) {
			request := &api.StartRequest{
				Image: "python:3", MemoryMib: 192, Init: []byte(sandboxtest.Init),
			}
			replace(t, request, []string{"--sandbox", "qemu", "--boot-deadline", "3m"},
				[]string{"--images", replacedDir + "/images"},
				[]string{"--images", testbed.ImagesDir})
		})
	})
}

func replace(t *testing.T, request *api.StartRequest, sandbox, old, fresh []string) {
	flags := append([]string{
		"agent", "--run-dir", replacedRun, "--state-dir", t.TempDir(), "--metrics", "", "--pf",
		"igb",
		"--subnet", "10.0.2.0/24", "--first-address", "10.0.2.100",
		"--gateway", "10.0.2.2", "--dns", "10.0.2.3",
	}, sandbox...)
	former := func() *exec.Cmd {
		return exec.Command(replacedDir+"/fastiov", slices.Concat(flags, old)...)
	}
	present := func() *exec.Cmd { return fastiov(t, slices.Concat(flags, fresh)...) }
	defer must(t, "down", "--undo", "--run-dir", replacedRun)

	agent := serveAgent(t, replacedRun, former())
	start := func(id string) {
		request.Id = id
		agent.start(request)
	}
	for n := range 7 {
		start(fmt.Sprintf("former-%d", n))
	}
	agent = agent.replacedBy(present())
	left := slices.Sorted(maps.Keys(agent.sandboxes()))
	for _, id := range left[:min(2, len(left))] {
		if _, err := agent.node.Stop(t.Context(), &api.StopRequest{Id: id}); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 2 {
		start(fmt.Sprintf("present-%d", n))
	}
	agent = agent.replacedBy(former())
	agent = agent.replacedBy(present())
	if _, err := agent.node.Drain(t.Context(),
		&api.DrainRequest{Cancel: true, Once: true}); err != nil {
		t.Error(err)
	}
	agent.allIdle()
	agent.kill()
}

// replacedBy kills the agent, starts the next one in its place, and checks what happens to the
// sandboxes.
func (a *served) replacedBy(cmd *exec.Cmd) *served {
	a.t.Helper()
	before := a.sandboxes()
	a.kill()
	next := serveAgent(a.t, replacedRun, cmd)
	next.settled()
	now := next.sandboxes()
	adopted := 0
	for id, was := range before {
		s := now[id]
		if s == nil {
			next.endedBecause(id)
			continue
		}
		if !s.Adopted || s.State != "ready" || s.Vf != was.Vf || s.Pid != was.Pid {
			a.t.Errorf("%v was %v", s, was)
			continue
		}
		next.greets(id)
		adopted++
	}
	a.t.Logf("%s adopted %d of %d", cmd.Path, adopted, len(before))
	if adopted < len(before) && os.Getenv(replacedFrom) == "" {
		a.t.Errorf("of %d sandboxes %d are adopted", len(before), adopted)
	}
	return next
}

// endedBecause shows, once the agent has ended, why it ended a sandbox that it should have adopted.
func (a *served) endedBecause(id string) {
	a.t.Cleanup(func() {
		a.kill()
		_, why, said := strings.Cut(a.log.String(), "sandbox="+id+" err=")
		if why, _, _ = strings.Cut(why, "\n"); !said {
			why = "it is not said why"
			a.t.Error(why)
		}
		a.t.Logf("%s was ended: %s", id, why)
	})
}
