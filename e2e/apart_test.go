package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/node-agent/api"
)

// nobody is a user that exists on every machine.
const nobody = "nobody"

// apart is a node and its invoker in two processes, over sim.
type apart struct{ dir, run, metrics, address string }

func upApart(t *testing.T, flags ...string) *apart {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to run the invoker as another user")
	}
	dir := reachable(t)
	a := &apart{dir: filepath.Join(dir, "state"), run: filepath.Join(dir, "run"),
		metrics: listenLater(t)}
	downAfter(t, a.run)
	must(t, append([]string{"up", "--sandbox", "sim", "--invoker-user", nobody, "--run-dir", a.run,
		"--state-dir", a.dir,
		"--metrics", a.metrics}, flags...)...)
	a.address = readListen(t, a.run)
	return a
}

// reachable returns a directory of the test that other users can reach.
func reachable(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "fastiov-test-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// processes returns the pids behind the two sockets.
func (a *apart) processes(t *testing.T) (agent, invoker int) {
	t.Helper()
	for socket, to := range map[string]*int{nodeSocket: &agent, invokerSocket: &invoker} {
		*to, _ = serverOf(t, filepath.Join(a.run, socket))
	}
	return agent, invoker
}

func (a *apart) burst(t *testing.T, n int) {
	t.Helper()
	var burst bench.BurstResult
	out := must(t, "burst", "--n", strconv.Itoa(n), "--json", "--run-dir", a.run,
		"--state-dir", a.dir)
	if err := json.Unmarshal([]byte(out), &burst); err != nil {
		t.Fatal(err)
	}
	if burst.Answered != n || burst.Leaked != 0 {
		t.Errorf("%d of %d answered, %d leaked", burst.Answered, n, burst.Leaked)
	}
}

func procFile(t *testing.T, pid int, name string) string {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// `up` runs agent and invoker as two processes. The invoker has no privileges of root, and
// everything works for users as with one process.
func TestTheInvokerIsNotRoot(t *testing.T) {
	a := upApart(t, "--listen", "0.0.0.0:0") // this address makes the invoker make a key
	agent, invoker := a.processes(t)
	if agent == invoker {
		t.Fatal("one process")
	}
	status := procFile(t, invoker, "status")
	for _, want := range []string{"Uid:\t65534\t65534\t65534\t65534", "Groups:\t \n",
		"NoNewPrivs:\t1",
		"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapAmb:\t0000000000000000"} {
		if !strings.Contains(status, want) {
			t.Errorf("/proc/%d/status has no %q:\n%s", invoker, want, status)
		}
	}
	if limits := procFile(t, invoker, "limits"); !strings.Contains(
		strings.Join(strings.Fields(limits), " "), "core file size 0 0") {
		t.Errorf("it may leave a core:\n%s", limits)
	}
	if info, err := os.Stat(fmt.Sprintf("/proc/%d/environ", invoker)); err != nil ||
		info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("it is dumpable: %v", err)
	}
	a.burst(t, 5)
	text := scrape(t, a.metrics)
	for _, want := range []string{
		// The agent counts these,
		`fastiov_node_stage_seconds_count{fastiov="none",netpath="none",sandbox="sim",stage="4-vfio-dev"} 5`,
		// and the invoker these.
		`fastiov_cold_start_seconds_count{api="openwhisk",fastiov="none",netpath="none",sandbox="sim"} 5`,
		`process_resident_memory_bytes{process="agent"}`,
		`process_resident_memory_bytes{process="invoker"}`,
		`process_open_fds{process="invoker"}`, "\nfastiov_build_info{",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
	if key := strings.TrimSpace(must(t, "user", "create", "ann", "--run-dir", a.run,
		"--state-dir", a.dir)); len(key) < 64 {
		t.Errorf("ann's key is %q", key)
	}
	must(t, "down", "--run-dir", a.run)
	for _, pid := range []int{agent, invoker} {
		// the arguments of an ended process are empty
		if words, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil &&
			len(words) > 0 {
			t.Errorf("process %d is there after `down`", pid)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(a.run, "*.sock")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if list := must(t, "user", "list", "--run-dir", a.run,
		"--state-dir", a.dir); !strings.Contains(list, "ann") {
		t.Errorf("after the end, the list is\n%s", list)
	}
}

// Neither the key nor the store's password is in the arguments or the environment of a process.
func TestNoProcessShowsASecret(t *testing.T) {
	const inheritedSecret = "hunter2-of-the-environment"
	t.Setenv("SOME_PASSWORD", inheritedSecret)
	a := upApart(t, "--listen", "0.0.0.0:0")
	key, err := openwhisk.LoadKey(a.address, keyFile(a.dir))
	if err != nil {
		t.Fatal(err)
	}
	agent, invoker := a.processes(t)
	for _, pid := range []int{agent, invoker} {
		for _, file := range []string{"cmdline", "environ"} {
			if shown := procFile(t, pid, file); shown == "" || strings.Contains(shown, key.Secret) {
				t.Errorf("/proc/%d/%s is empty, or shows the key: %q", pid, file, shown)
			}
		}
	}
	if strings.Contains(procFile(t, invoker, "environ"), inheritedSecret) {
		t.Error("the invoker has inherited root's environment")
	}
	for flag, args := range map[string][]string{
		"store":   {"up", "--foreground", "--sandbox", "sim", "--store", "redis://:hunter2@127.0.0.1:1", "--listen", "127.0.0.1:0"},
		"couchdb": {"invoker", "--bus", "kafka://a:1", "--invoker-id", "0", "--couchdb", "http://u:hunter2@a/p"},
	} {
		out, err := fastiov(t, append(args, "--run-dir", t.TempDir(), "--state-dir", t.TempDir(),
			"--metrics", "")...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "--"+flag+"-password-file") ||
			strings.Contains(string(out), "hunter2") {
			t.Errorf("--%s with a password: %v, %s", flag, err, out)
		}
	}
}

// Calls that come meanwhile wait and are answered. The agent keeps its sandboxes.
func TestAnInvokerThatDiesIsStartedAgain(t *testing.T) {
	a := upApart(t, "--listen", "127.0.0.1:0")
	a.burst(t, 2)
	agent, invoker := a.processes(t)
	if err := unix.Kill(invoker, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	a.burst(t, 2) // at once, and no call is refused
	agentNow, invokerNow := a.processes(t)
	if agentNow != agent || invokerNow == invoker {
		t.Errorf("agent %d, then %d; invoker %d, then %d", agent, agentNow, invoker, invokerNow)
	}
	log, err := os.ReadFile(filepath.Join(a.run, "fastiov.log"))
	if err != nil || !strings.Contains(string(log), "the invoker has failed; it is started again") {
		t.Errorf("%v, the log does not say it:\n%s", err, log)
	}
}

// A killed agent leaves no invoker behind.
func TestAnInvokerEndsWithItsAgent(t *testing.T) {
	a := upApart(t, "--listen", "127.0.0.1:0")
	agent, invoker := a.processes(t)
	process, err := unix.PidfdOpen(invoker, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(process)
	if err := unix.Kill(agent, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ended := []unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(ended, 20_000)
		if err == unix.EINTR {
			continue
		}
		if n != 1 {
			t.Errorf("the invoker is there 20 s after its agent: %v", err)
		}
		return
	}
}

// The last line says why, and nothing is left.
func TestAnInvokerThatCannotStartSaysWhy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to run the invoker as another user")
	}
	dir := reachable(t)
	runtimes := fileOf(t, "{}")
	for want, flags := range map[string][]string{
		"store redis 127.0.0.1:1":                   {"--store", "redis://127.0.0.1:1"},
		"the invoker runs as user nobody, who must": {"--runtimes", runtimes},
	} {
		run := filepath.Join(dir, "run")
		cmd := fastiov(t, append([]string{"up", "--sandbox", "sim", "--invoker-user", nobody,
			"--run-dir", run,
			"--state-dir", filepath.Join(dir, "state"), "--listen", "127.0.0.1:0", "--metrics", ""},
			flags...)...)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), "fastiov: the invoker: ") ||
			!strings.Contains(string(out), want) ||
			strings.Count(string(out), "\n") != 1 {
			t.Errorf("%v, %q; want a line with %q", err, out, want)
		}
		if left, _ := filepath.Glob(filepath.Join(run, "*.sock")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

// A member of the group may read the status and the users. Others are told what to do.
func TestAGroupMayAsk(t *testing.T) {
	a := upApart(t, "--listen", "127.0.0.1:0")
	const nogroup = 65534
	as := func(gid uint32, args ...string) (string, error) {
		cmd := fastiov(t, append(args, "--run-dir", a.run)...)
		worldRun(t, cmd)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345,
			Gid: gid}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, args := range [][]string{{"status"}, {"user", "list"}} {
		if out, err := as(nogroup, args...); err != nil || !strings.Contains(out, "STATE") {
			t.Errorf("a member of the group, %v: %v, %s", args, err, out)
		}
		out, err := as(12345, args...)
		if err == nil || !strings.Contains(out, "usermod -aG") || strings.Count(out, "\n") != 1 {
			t.Errorf("another user, %v: %v, %s", args, err, out)
		}
	}
	if out, err := as(nogroup, "down"); err == nil || !strings.Contains(out, "use sudo") {
		t.Errorf("a member of the group, down: %v, %s", err, out)
	}
	var status api.StatusReply
	if err := json.Unmarshal([]byte(must(t, "status", "--json", "--run-dir", a.run)),
		&status); err != nil || status.Draining {
		t.Errorf("%v: a refused `down` has left %v", err, &status)
	}
}

// On a machine that accepts no new account, the invoker does not run as root.
func TestTheInvokerHasAUserIDWhereThereIsNoAccount(t *testing.T) {
	t.Setenv("PATH", "/nonexistent") // without useradd
	// Below the users of sandboxes, above those that distributions assign.
	const noAccount = 1_899_999_999
	a := upApart(t, "--listen", "127.0.0.1:0", "--invoker-user", "fastiov-no-such-user")
	_, invoker := a.processes(t)
	if status := procFile(t, invoker, "status"); !strings.Contains(status,
		fmt.Sprintf("Uid:\t%d\t", noAccount)) {
		t.Errorf("it runs as another user:\n%s", status)
	}
	a.burst(t, 1)
	log, err := os.ReadFile(filepath.Join(a.run, "fastiov.log"))
	if err != nil || !strings.Contains(string(log), "none can be made") {
		t.Errorf("%v, the log does not say it:\n%s", err, log)
	}
}

// Root opens the port, so the invoker needs no privilege for it.
func TestAPortBelow1024(t *testing.T) {
	port := 0
	for port = 1023; port > 900; port-- {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			break
		}
	}
	a := upApart(t, "--listen", "127.0.0.1:0", "--https", fmt.Sprintf("127.0.0.1:%d", port))
	out, err := exec.CommandContext(t.Context(), "curl", "-ks",
		fmt.Sprintf("https://127.0.0.1:%d/api/v1", port)).Output()
	if err != nil || !strings.Contains(string(out), "api_paths") {
		t.Errorf("%v, %s", err, out)
	}
	if made, err := os.Stat(filepath.Join(a.dir, "tls-key.pem")); err != nil ||
		made.Sys().(*syscall.Stat_t).Uid == 0 {
		t.Errorf("the certificate's key: %v", err)
	}
}

// awaken continues a stopped process when the first warning is written.
type awaken struct {
	pid    int
	warned string
}

func (a *awaken) Write(p []byte) (int, error) {
	a.warned += string(p)
	return len(p), unix.Kill(a.pid, unix.SIGCONT)
}

// An invoker that ignores SIGTERM does not keep its node from ending.
func TestANodeEndsWhoseInvokerHangs(t *testing.T) {
	a := upApart(t, "--listen", "127.0.0.1:0")
	agent, invoker := a.processes(t)
	if err := unix.Kill(invoker, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	warned := &awaken{pid: invoker} // so that the agent's own time limit is not used up
	down := fastiov(t, "down", "--run-dir", a.run, "--timeout", "20s")
	down.Stderr = warned
	if err := down.Run(); err != nil {
		t.Fatal(err, warned.warned)
	}
	if !strings.Contains(warned.warned, strconv.Itoa(invoker)) {
		t.Errorf("the warning is %q", warned.warned)
	}
	for _, pid := range []int{agent, invoker} {
		words, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && len(words) > 0 {
			t.Errorf("process %d is there", pid)
		}
	}
}

// A second `up` must not overwrite what callers of the first one read.
func TestASecondUpLeavesTheFirstAlone(t *testing.T) {
	a := upApart(t, "--listen", "127.0.0.1:0")
	for _, user := range []string{nobody, ""} {
		out, err := fastiov(t, "up", "--foreground", "--sandbox", "sim", "--invoker-user", user,
			"--run-dir", a.run,
			"--state-dir", filepath.Join(reachable(t), "state"), "--listen", "127.0.0.1:0",
			"--metrics", "").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "an agent runs on") {
			t.Errorf("as %q: %v, %s", user, err, out)
		}
		if now := readListen(t, a.run); now != a.address {
			t.Errorf("as %q: the first is at %s, and the note says %s", user, a.address, now)
		}
	}
	a.burst(t, 1)
}
