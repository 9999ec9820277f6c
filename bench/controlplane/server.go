package controlplane

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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/invoker/openwhisk"
)

// A server is a measured process with its own directories.
type server struct {
	kube
	cmd     *exec.Cmd
	agent   *exec.Cmd // nil: the agent is in the same process
	log     bytes.Buffer
	dir     string
	address string
	metrics string
	ended   chan error
}

// runDir returns the directory where a server writes its address. It is in memory, as /run is.
func (s *server) runDir() string { return filepath.Join(s.dir, "run") }

const unlimited = "1000000000"

// up starts the invoker and its agent in one process. Its sandboxes start in no time.
func (b *Bench) up(ctx context.Context, flags ...string) (*server, error) {
	metrics, err := bench.FreeAddress()
	if err != nil {
		return nil, err
	}
	s, err := b.serve(ctx, func(runDir, stateDir string) []string {
		return append([]string{
			"up", "--foreground", "--sandbox", "sim", "--sim-start", "0", "--run-dir", runDir,
			"--state-dir", stateDir, "--listen", "127.0.0.1:0",
			"--metrics", metrics, "--invocations-per-minute", unlimited, "--concurrent-invocations",
			unlimited, "--pause-after", "0",
		}, flags...)
	})
	if err == nil {
		s.metrics = metrics
	}
	return s, err
}

// apart starts the invoker and its agent as two processes, which are joined by the agent's socket.
func (b *Bench) apart(ctx context.Context, ofAgent, ofInvoker []string) (*server, error) {
	var agent *exec.Cmd
	s, err := b.serve(ctx, func(runDir, stateDir string) []string {
		dirs := []string{"--run-dir", runDir, "--state-dir", stateDir}
		agent = b.command(ctx, slices.Concat(
			[]string{"agent", "--sandbox", "sim", "--sim-start", "0", "--metrics", ""},
			dirs, ofAgent))
		return slices.Concat([]string{"invoker", "--listen", "127.0.0.1:0",
			"--invocations-per-minute", unlimited,
			"--concurrent-invocations", unlimited, "--pause-after", "0"}, dirs, ofInvoker)
	})
	if err != nil {
		return nil, err
	}
	if err := agent.Start(); err != nil {
		s.stop()
		return nil, err
	}
	s.agent = agent
	err = s.await(ctx, func() error {
		_, err := os.Stat(filepath.Join(s.runDir(), "node.sock"))
		return err
	})
	if err != nil {
		s.stop()
	}
	return s, err
}

// command returns a command that is killed when the bench ends, even if a signal ends the bench.
func (b *Bench) command(ctx context.Context, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.Command, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = append(os.Environ(), "FASTIOV_CONFIG=/dev/null") // not what this machine has
	return cmd
}

// plain starts the plain handler.
func (b *Bench) plain(ctx context.Context) (*server, error) {
	s, err := b.serve(ctx, func(runDir, _ string) []string {
		return []string{b.Plain, "--run-dir", runDir}
	})
	if err == nil {
		s.metrics = s.address
	}
	return s, err
}

// serve starts a subcommand that writes down its address, and waits until it answers there.
func (b *Bench) serve(
	ctx context.Context, args func(runDir, stateDir string) []string,
) (_ *server, err error) {
	key, err := openwhisk.LoadKey("127.0.0.1:0", "")
	if err != nil {
		return nil, err
	}
	s := &server{kube: kube{newClient(), "", key.String()}, ended: make(chan error, 1)}
	if s.dir, err = os.MkdirTemp("/dev/shm", "fastiov-bench-"); err != nil {
		return nil, err
	}
	stateDir, err := os.MkdirTemp("", "fastiov-bench-") // on a disk if there is one
	if err != nil {
		os.RemoveAll(s.dir)
		return nil, err
	}
	s.cmd = b.command(ctx, args(s.runDir(), stateDir))
	s.cmd.Stderr = &s.log
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		s.ended <- s.cmd.Wait()
		os.RemoveAll(s.dir)
		os.RemoveAll(stateDir)
		close(s.ended)
	}()
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	return s, s.await(ctx, func() (err error) {
		address, err := os.ReadFile(filepath.Join(s.runDir(), "listen"))
		if err != nil {
			return err
		}
		s.address, s.base = string(address), "http://"+string(address)
		_, err = get("http://" + s.address + "/api/v1")
		return err
	})
}

// await calls try until it succeeds or the process has ended.
func (s *server) await(ctx context.Context, try func() error) error {
	deadline := time.Now().Add(time.Minute)
	for {
		err := try()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
		select {
		case <-s.ended:
			return fmt.Errorf("the server ended: %s", lastLine(s.log.String()))
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// stop kills the process, since nothing of it is kept.
func (s *server) stop() {
	_ = s.cmd.Process.Kill()
	if s.agent != nil {
		_ = s.agent.Process.Kill()
		_ = s.agent.Wait()
	}
	for range s.ended { // until it is closed
	}
}

func get(url string) ([]byte, error) {
	resp, err := http.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// put deploys n actions and returns their names.
func (s *server) put(ctx context.Context, n int, limits string) ([]string, error) {
	names, requests := make([]string, n), make([][]byte, n)
	for i := range names {
		names[i] = fmt.Sprintf("action-%d", i)
		requests[i] = request(s.key, "PUT", "actions/"+names[i],
			`{"exec":{"kind":"python:3","code":"def main(a): return a"},"limits":{`+limits+`}}`)
	}
	l := load{s.address, 64, http.StatusOK, inTurn(requests)}
	t, err := l.times(ctx, n)
	if err == nil && t.failed > 0 {
		err = fmt.Errorf("deploying: %s", t.example)
	}
	return names, err
}

// deployed starts the invoker with n actions, and returns a call of each.
func (b *Bench) deployed(
	ctx context.Context, n, memoryMiB int, flags ...string,
) (*server, [][]byte, error) {
	s, err := b.up(ctx, flags...)
	if err != nil {
		return nil, nil, err
	}
	calls, err := s.deploy(ctx, n, memoryMiB)
	return s, calls, err
}

// deploy puts n actions, and returns a call of each. It stops a server that refuses them.
func (s *server) deploy(ctx context.Context, n, memoryMiB int) ([][]byte, error) {
	names, err := s.put(ctx, n, fmt.Sprintf(`"memory":%d`, memoryMiB))
	if err != nil {
		s.stop()
		return nil, err
	}
	calls := make([][]byte, n)
	for i, name := range names {
		calls[i] = s.invoke(name)
	}
	return calls, nil
}

// invoke returns a blocking call of the action, whose answer is the result alone.
func (s *server) invoke(action string) []byte {
	return request(s.key, "POST", "actions/"+action+"?blocking=true&result=true", `{"name":"you"}`)
}

// recorded counts the activation records.
func (s *server) recorded() (n int, err error) {
	r, err := http.NewRequest(http.MethodGet,
		"http://"+s.address+"/api/v1/namespaces/_/activations?count=true", nil)
	if err != nil {
		return 0, err
	}
	user, secret, _ := strings.Cut(s.key, ":")
	r.SetBasicAuth(user, secret)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var count struct{ Activations int }
	return count.Activations, json.NewDecoder(resp.Body).Decode(&count)
}

// A spent holds how much of each resource a server has used.
type spent struct {
	cpu         time.Duration
	allocations float64
	coldStarts  float64
}

func (s *server) spent() (now spent, err error) {
	if now.cpu, err = cpuOf(s.cmd.Process.Pid); err != nil {
		return now, err
	}
	if s.agent != nil {
		ofAgent, err := cpuOf(s.agent.Process.Pid)
		if err != nil {
			return now, err
		}
		now.cpu += ofAgent
	}
	if s.metrics == "" {
		return now, nil
	}
	text, err := get("http://" + s.metrics + "/metrics")
	if err != nil {
		return now, err
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, _, _ = strings.Cut(name, "{")
		to := map[string]*float64{
			"go_memstats_mallocs_total":        &now.allocations,
			"fastiov_cold_start_seconds_count": &now.coldStarts,
		}[name]
		if to != nil {
			if *to, err = strconv.ParseFloat(value, 64); err != nil {
				return now, err
			}
		}
	}
	return now, nil
}

// cpuOf returns the CPU time of a process in user mode and in the kernel, by the process's own
// clock.
func cpuOf(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED: all threads of the process, as the scheduler counts
	var t unix.Timespec
	err := unix.ClockGettime(int32(^pid<<3|scheduled), &t)
	return time.Duration(t.Nano()), err
}

// descriptors returns how many files the process has open: the minimum over a while, since a server
// closes its side of a connection a moment later.
func (s *server) descriptors() (least int, err error) {
	for try := range 50 {
		open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
		if err != nil {
			return 0, err
		}
		if try == 0 || len(open) < least {
			least = len(open)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return least, nil
}

// childFaults returns the page faults of the processes that the server started and that have ended.
func (s *server) childFaults() (n int, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	afterName := stat[bytes.LastIndexByte(stat, ')')+1:]
	return strconv.Atoi(strings.Fields(string(afterName))[8]) // cminflt of proc(5)
}
