package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/testbed"
)

// Of a killed agent's sandboxes, one was stopped by a signal and one was killed. The next agent
// serves, and adopts the others, while it still waits for the stopped one, which it then ends with
// a reason.
func TestAStoppedVMMDelaysNoRestart(t *testing.T) {
	testbed.Inside(t, testbed.Needs{NICs: 1}, func(t *testing.T) {
		const runDir = "/run/fastiov-restart"
		flags := []string{
			"agent", "--sandbox", "bare", "--run-dir", runDir, "--state-dir", t.TempDir(),
			"--metrics", "",
			"--pf", "igb", "--subnet", "10.0.2.0/24", "--first-address", "10.0.2.100",
			"--gateway", "10.0.2.2", "--dns", "10.0.2.3",
		}
		defer must(t, "down", "--undo", "--run-dir", runDir)
		agent := serveAgent(t, runDir, fastiov(t, flags...))
		names := []string{"well-0", "well-1", "stopped", "killed"}
		for _, id := range names {
			agent.start(&api.StartRequest{Id: id, MemoryMib: 64})
		}
		before := agent.sandboxes()
		agent.kill()
		for id, signal := range map[string]syscall.Signal{
			"stopped": syscall.SIGSTOP, "killed": syscall.SIGKILL,
		} {
			if err := syscall.Kill(int(before[id].Pid), signal); err != nil {
				t.Fatal(err)
			}
		}
		agent = serveAgent(t, runDir, fastiov(t, flags...))
		agent.until("the others are adopted beside it", func(now map[string]*api.Sandbox) bool {
			if now["stopped"] == nil {
				t.Fatalf("the others wait until the stopped one has ended: %v", now)
			}
			return now["well-0"].GetState() == "ready" && now["well-1"].GetState() == "ready"
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := agent.node.Run(ctx, &api.RunRequest{Id: "stopped", Body: []byte("{}")})
		const why = "has not answered within"
		if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), why) {
			t.Errorf("a run in the stopped one: %v", err)
		}
		_, err = agent.node.Run(ctx, &api.RunRequest{Id: "well-0", Body: []byte("{}")})
		if err != nil {
			t.Errorf("a run in an adopted one: %v", err)
		}
		agent.settled()
		for id, s := range agent.sandboxes() {
			if !strings.HasPrefix(id, "well-") || !s.Adopted || s.Vf != before[id].Vf {
				t.Errorf("%v was %v", s, before[id])
			}
		}
		if _, err := agent.node.Drain(ctx, &api.DrainRequest{Cancel: true}); err != nil {
			t.Error(err)
		}
		agent.allIdle()
		agent.kill()
		said := agent.log.String()
		if strings.Count(said, "ending a sandbox that cannot be adopted") != 2 {
			t.Errorf("of two that cannot be adopted is said:\n%s", said)
		}
	})
}

// A node that drains does so until that is undone, whatever happens to its agent.
func TestADrainOutlivesTheAgent(t *testing.T) {
	dir, metrics := t.TempDir(), listenLater(t)
	runDir := filepath.Join(dir, "run")
	begin := func() *served {
		t.Helper()
		return serveAgent(t, runDir, fastiov(t, "agent", "--sandbox", "sim", "--sim-start", "0",
			"--run-dir", runDir, "--state-dir", dir, "--metrics", metrics))
	}
	readyz := func(want string) {
		t.Helper()
		defer http.DefaultClient.CloseIdleConnections()
		said := ""
		late := time.Now().Add(time.Minute)
		for ; time.Now().Before(late); time.Sleep(20 * time.Millisecond) {
			resp, err := http.Get("http://" + metrics + "/readyz")
			if err != nil {
				continue
			}
			b, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if said = resp.Status + " " + string(b); strings.Contains(said, want) {
				return
			}
		}
		t.Errorf("/readyz says %q, want %q", said, want)
	}
	health := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		conn, err := grpc.NewClient("unix:"+filepath.Join(runDir, nodeSocket),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		says, err := healthpb.NewHealthClient(conn).Check(t.Context(),
			&healthpb.HealthCheckRequest{})
		if err != nil || says.Status != want {
			t.Errorf("health: %v, %v; want %v", says, err, want)
		}
	}
	request := &api.StartRequest{Id: "x", MemoryMib: 64, WaitMs: 60_000}
	agent := begin()
	readyz("200")
	for range 2 { // the second drain finds the note of the first
		if _, err := agent.node.Drain(t.Context(), &api.DrainRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the drain outlives more than one agent
		agent.kill()
		agent = begin()
		if _, err := agent.node.Start(t.Context(), request); status.Code(err) != codes.Unavailable {
			t.Errorf("a start on a node that was drained: %v", err)
		}
		if !agent.status().Draining {
			t.Error("it does not drain any more")
		}
		readyz("503 Service Unavailable not ready: the node drains")
		health(healthpb.HealthCheckResponse_NOT_SERVING)
	}
	for range 2 {
		must(t, "drain", "--undo", "--run-dir", runDir)
	}
	readyz("200")
	health(healthpb.HealthCheckResponse_SERVING)
	must(t, "down", "--run-dir", runDir) // this drains the node too
	agent.kill()
	agent = begin()
	defer agent.kill()
	if _, err := agent.node.Start(t.Context(), request); err != nil {
		t.Errorf("a start on a node that drains no more: %v", err)
	}
}

// The bench reports what it did: of sim no sandbox survives, of bare all but the stopped one.
func TestARestartIsMeasured(t *testing.T) {
	result := measureRestart(t, "--sandbox", "sim", "--n", "5")
	if result.Adopted != 0 || result.Ended != 5 || result.Serves <= 0 || result.CPU <= 0 {
		t.Errorf("%+v", result)
	}
}

// restartAmong sets among how many bare sandboxes a restart is measured. An emulated host takes
// seconds to start each.
const restartAmong = "FASTIOV_TEST_RESTART_AMONG"

// All sandboxes but the stopped one are adopted, and the stopped one delays no other: the last
// adoption ends within the time of one plus 1.3 times the CPU time of all, on one processor. The
// agent answers before the first adoption, and then already knows what the node can hold.
func TestARestartAmongMany(t *testing.T) {
	n, err := strconv.Atoi(os.Getenv(restartAmong))
	if err != nil {
		t.Skipf("takes minutes: set %s, as to 120", restartAmong)
	}
	// The node counts 64 MiB for a sandbox's VMM, which uses only a few.
	const counts = 128
	needs := testbed.Needs{NVMeVFs: n, MemoryMiB: 4096 + counts*(n/2), Env: []string{restartAmong}}
	testbed.Inside(t, needs, func(t *testing.T) {
		among := func(n, stopped int, args ...string) *bench.RestartResult {
			args = append(args, fmt.Sprint("--n=", n), fmt.Sprint("--stopped=", stopped))
			r := measureRestart(t, args...)
			text, _ := json.Marshal(r)
			t.Logf("%s", text)
			if r.Adopted != n-stopped || r.CapacityAfter != r.CapacityBefore ||
				r.ReservedAtOnce != r.ReservedBefore {
				t.Errorf("of %d sandboxes %d were stopped: %s", n, stopped, text)
			}
			return &r
		}
		full := func(n int) string { return fmt.Sprint("--memory=", counts*n) }

		among(1, 0) // on a node that checks how much memory is free
		one, some := among(1, 0, full(1)), among(n/5, 0, full(n/5))
		each := (some.CPU - one.CPU) / float64(n/5-1)
		bound := one.LastAdopted + 1.3*float64(n)*each
		t.Logf("each costs the processor %.1f ms; all are to be adopted within %.0f ms",
			each, bound)
		for stopped := range 2 {
			r := among(n, stopped, full(n))
			if r.LastAdopted > bound {
				t.Errorf("%d were stopped: the last is adopted after %.0f ms",
					stopped, r.LastAdopted)
			}
			if r.Serves > r.FirstAdopted {
				t.Errorf("%d were stopped: the first is adopted before the agent answers", stopped)
			}
		}
	})
}

func measureRestart(t *testing.T, args ...string) (r bench.RestartResult) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var complaint bytes.Buffer
	args = append([]string{"bench", "restart", "--json"}, args...)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env, cmd.Stderr = append(os.Environ(), asCommand+"="+t.Name()), &complaint
	text, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatalf("%v: %s%s", err, text, complaint.Bytes())
	}
	return r
}

// A served is an agent in its own process whose API answers.
type served struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  bytes.Buffer // may be read once it has ended
	node api.NodeClient
}

func serveAgent(t *testing.T, runDir string, cmd *exec.Cmd) *served {
	t.Helper()
	a := &served{t: t, cmd: cmd}
	cmd.Stdout, cmd.Stderr = &a.log, &a.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for late := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		node, hangUp, err := dialNode(runDir)
		if err == nil {
			if _, err = node.Status(t.Context(), &api.StatusRequest{Brief: true}); err == nil {
				t.Cleanup(hangUp)
				a.node = node
				return a
			}
			hangUp() // the socket belongs to a killed agent
		}
		if time.Now().After(late) {
			a.kill()
			t.Fatalf("the agent does not serve: %v\n%s", err, a.log.String())
		}
	}
}

func (a *served) kill() {
	_ = a.cmd.Process.Kill()
	_ = a.cmd.Wait()
}

func (a *served) start(request *api.StartRequest) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), 3*time.Minute)
	defer cancel()
	request.WaitMs = 60_000
	if _, err := a.node.Start(ctx, request); err != nil {
		a.kill()
		a.t.Fatalf("%v\n%s", err, a.log.String())
	}
}

func (a *served) status() *api.StatusReply {
	a.t.Helper()
	st, err := a.node.Status(a.t.Context(), &api.StatusRequest{})
	if err != nil {
		a.t.Fatal(err)
	}
	return st
}

func (a *served) sandboxes() map[string]*api.Sandbox {
	now := map[string]*api.Sandbox{}
	for _, s := range a.status().Sandboxes {
		now[s.Id] = s
	}
	return now
}

// until waits until the sandboxes are in the given state.
func (a *served) until(what string, is func(now map[string]*api.Sandbox) bool) {
	a.t.Helper()
	now := a.sandboxes()
	for late := time.Now().Add(time.Minute); !is(now); now = a.sandboxes() {
		if time.Now().After(late) {
			a.kill()
			a.t.Fatalf("it does not come that %s: %v\n%s", what, now, a.log.String())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// settled waits until everything of a former agent is adopted or has ended.
func (a *served) settled() {
	a.t.Helper()
	a.until("all is settled", func(map[string]*api.Sandbox) bool { return a.status().Settled() })
}

// allIdle waits until no sandbox, no leased VF and nothing else is left.
func (a *served) allIdle() {
	a.t.Helper()
	var wrong []string
	late := time.Now().Add(time.Minute)
	for ; time.Now().Before(late); time.Sleep(20 * time.Millisecond) {
		st := a.status()
		wrong = st.Leftovers
		for _, s := range st.Sandboxes {
			wrong = append(wrong, "sandbox "+s.Id)
		}
		for _, v := range st.Vfs {
			if v.State != string(vf.Idle) {
				wrong = append(wrong, fmt.Sprintf("%s is %s", v.Bdf, v.State))
			}
		}
		if len(wrong) == 0 {
			return
		}
	}
	a.t.Errorf("left: %v", wrong)
}
