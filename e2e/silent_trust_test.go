//go:build trust

package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/sandbox/sandboxtest"
	"github.com/fastiov/fastiov/testbed"
)

// The action runs as root in its guest. It stops all threads of process 1, which is the only one
// that answers for the guest. Then it writes that to the console, and spins.
const (
	isSilent = "process 1 is stopped"
	silences = `
import ctypes, os

def main(args):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    def ptrace(request, thread):
        if libc.ptrace(request, thread, None, None) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")
    SEIZE, INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
    stopped = set()
    while fresh := {int(name) for name in os.listdir("/proc/1/task")} - stopped:
        for thread in fresh:
            ptrace(SEIZE, thread)
            ptrace(INTERRUPT, thread)
            os.waitpid(thread, WALL)
        stopped |= fresh
    with open("/dev/console", "w") as console:
        print("` + isSilent + `", file=console)
    while True:
        pass
`
)

// Of a killed agent's three microVMs, one spins and is silent. The next agent serves, and adopts
// the others, while it still waits for that one, which it then ends with a reason.
func TestASilentGuestDelaysNoRestart(t *testing.T) {
	if testing.Short() {
		t.Skip("boots microVMs")
	}
	needs := testbed.Needs{NICs: 1, Images: []string{"python:3"}}
	testbed.Inside(t, needs, func(t *testing.T) {
		const runDir, silent = "/run/fastiov-silent", "silent"
		flags := []string{
			"agent", "--run-dir", runDir, "--state-dir", t.TempDir(), "--metrics", "", "--pf",
			"igb",
			"--subnet", "10.0.2.0/24", "--first-address", "10.0.2.100",
			"--gateway", "10.0.2.2", "--dns", "10.0.2.3",
			"--sandbox", "qemu", "--images", testbed.ImagesDir, "--boot-deadline", "3m",
		}
		action, err := json.Marshal(map[string]any{"value": map[string]string{"code": silences}})
		if err != nil {
			t.Fatal(err)
		}
		defer must(t, "down", "--undo", "--run-dir", runDir)
		agent := serveAgent(t, runDir, fastiov(t, flags...))
		for id, init := range map[string]string{
			"well-0": sandboxtest.Init, "well-1": sandboxtest.Init, silent: string(action),
		} {
			agent.start(&api.StartRequest{
				Id: id, Image: "python:3", MemoryMib: 192, Init: []byte(init),
			})
		}
		before := agent.sandboxes()
		agent.silence(silent, filepath.Join(runDir, "sandbox", silent, "console.log"))
		agent.kill()

		pid, killed := before[silent].Pid, time.Now()
		spunBefore := processorTime(t, pid)
		agent = serveAgent(t, runDir, fastiov(t, flags...))
		serves := time.Since(killed)
		refused := make(chan error, 1)
		go func() {
			_, err := agent.node.Run(t.Context(), &api.RunRequest{Id: silent, Body: []byte("{}")})
			refused <- err
		}()
		agent.until("the others are adopted beside it", func(now map[string]*api.Sandbox) bool {
			if now[silent].GetState() != "adopting" {
				t.Fatalf("the others wait for the silent one: %v", now)
			}
			return now["well-0"].GetState() == "ready" && now["well-1"].GetState() == "ready"
		})
		adopted := time.Since(killed)
		spun := processorTime(t, pid) - spunBefore
		t.Logf("the agent serves after %v, the others are adopted after %v; "+
			"the silent one spun for %v of that", serves, adopted, spun)
		// it shares one processor with the other guests, two agents and the test
		if spun < adopted/5 {
			t.Errorf("the silent one does not spin")
		}
		const why = "has not answered within"
		err = <-refused
		t.Logf("after %v it is told: %v", time.Since(killed), err)
		if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), why) {
			t.Errorf("a run in the silent one: %v", err)
		}
		agent.settled()
		now := agent.sandboxes()
		for id, was := range before {
			if id == silent {
				if now[id] != nil {
					t.Errorf("the silent one is still there: %v", now[id])
				}
				continue
			}
			if s := now[id]; !s.GetAdopted() || s.GetVf() != was.Vf || s.GetPid() != was.Pid {
				t.Errorf("%v was %v", s, was)
			}
			agent.greets(id)
		}
		if _, err := agent.node.Drain(t.Context(), &api.DrainRequest{Cancel: true}); err != nil {
			t.Error(err)
		}
		agent.allIdle()
		agent.kill()
		said := agent.log.String()
		if strings.Count(said, "ending a sandbox that cannot be adopted") != 1 ||
			!strings.Contains(said, "sandbox="+silent+` err="`) {
			t.Errorf("of the silent one is said:\n%s", said)
		}
	})
}

// silence runs the action above and returns when the guest is silent, as its console shows.
func (a *served) silence(id, console string) {
	a.t.Helper()
	ran := make(chan error, 1)
	go func() {
		reply, err := a.node.Run(a.t.Context(), &api.RunRequest{Id: id, Body: []byte("{}")})
		if err == nil {
			a.t.Logf("the action that is to spin answers: %d %s", reply.Status, reply.Body)
		}
		ran <- err
	}()
	for late := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		text, _ := os.ReadFile(console)
		if bytes.Contains(text, []byte(isSilent)) {
			return
		}
		select {
		case err := <-ran:
			a.kill()
			a.t.Fatalf("the action that is to spin ends (%v); its console: %s", err, text)
		default:
		}
		if time.Now().After(late) {
			a.kill()
			a.t.Fatalf("the guest does not become silent; its console: %s", text)
		}
	}
}

// greets checks that a sandbox with sandboxtest.Init answers.
func (a *served) greets(id string) {
	a.t.Helper()
	body := []byte(`{"value":{"name":"` + id + `"}}`)
	reply, err := a.node.Run(a.t.Context(), &api.RunRequest{Id: id, Body: body})
	if err != nil || !strings.Contains(string(reply.Body), id) {
		a.t.Errorf("a run in %s: %v, %v", id, reply, err)
	}
}

// processorTime returns the CPU time of all threads of a process.
func processorTime(t *testing.T, pid int32) time.Duration {
	t.Helper()
	const ofProcess = 2 // see clock_getcpuclockid(3)
	var had unix.Timespec
	if err := unix.ClockGettime(^pid<<3|ofProcess, &had); err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	return time.Duration(had.Nano())
}
