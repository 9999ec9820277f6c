//go:build trust

package e2e

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/access"
)

// withoutBounds makes the command believe that it may use far more memory than its cgroup has, so
// that it accepts every body. Garbage is still collected early: the memory must not be filled by
// garbage.
var withoutBounds = []string{"GOMEMLIMIT=1024TiB", "GOGC=10"}

const (
	callsAtOnce = 10_000
	memoryMiB   = 512
)

// 10,000 callers send a MiB each at once to an invoker whose cgroup has 512 MiB. The callers come
// from eight addresses. Meanwhile another tenant calls.
func TestLargeCallsLeaveMemoryToOthers(t *testing.T) {
	for _, how := range []string{"by one key", "by none"} {
		t.Run(how, func(t *testing.T) {
			s := startSmall(t)
			calls := s.meanwhile(t)
			got := s.storm(t, how)
			answered, failed := calls()
			t.Logf(
				"answers by status (0: closed without): %v; the other tenant: %d answered; %d MiB without caches",
				got, answered, s.peak>>20)
			if killed := s.group.killed(); killed > 0 || s.gone() {
				t.Errorf("the invoker ran out of memory, %d killed", killed)
			}
			if answered == 0 || len(failed) > 0 {
				t.Errorf("the other tenant: %d answered, and %d failed: %.3q", answered,
					len(failed), failed)
			}
			if got[200] == 0 || got[429]+got[503] == 0 {
				t.Errorf("answers: %v; want some 200 and some 429 or 503", got)
			}
			for status := range got {
				switch status {
				case 0, 200, 202, 429, 503:
				default:
					t.Errorf("%d callers got HTTP %d", got[status], status)
				}
			}
		})
	}
}

// The same calls without the bound use up the memory.
func TestWithoutItsBoundsMemoryRunsOut(t *testing.T) {
	s := startSmall(t, withoutBounds...)
	got := s.storm(t, "by one key")
	t.Logf("answers by status: %v", got)
	if !s.gone() && s.group.killed() == 0 {
		t.Errorf("%d calls of 1 MiB at once fit into %d MiB: the test proves nothing",
			callsAtOnce, memoryMiB)
	}
}

// A small invoker has little memory, 16 simulated sandboxes, and two tenants.
type small struct {
	address string
	group   memoryGroup
	ann     access.Key
	over    chan struct{} // closed when the process has ended
	// the most bytes of memory in use, without memory that can be read again from files
	peak int64
}

func startSmall(t *testing.T, env ...string) *small {
	t.Helper()
	dir := t.TempDir()
	run := filepath.Join(dir, "run")
	s := &small{address: listenLater(t), group: newMemoryGroup(t, memoryMiB<<20),
		over: make(chan struct{})}
	cmd := s.group.command(fastiov(t, "up", "--foreground", "--sandbox", "sim",
		"--sim-start", "1ms", "--memory", "4096",
		"--listen", s.address, "--metrics", "", "--run-dir", run, "--state-dir", dir,
		"--wait", "5s"))
	cmd.Env = append(cmd.Env, env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait()
		close(s.over)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-s.over // the command has its own time limit
	})
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(run, invokerSocket)); err == nil {
			break
		}
		if s.gone() || time.Now().After(end) {
			t.Fatal("the invoker does not start")
		}
	}
	key := strings.TrimSpace(must(t, "user", "create", "ann", "--run-dir", run, "--state-dir", dir))
	s.ann.UUID, s.ann.Secret, _ = strings.Cut(key, ":")
	const web = `{"annotations":[{"key":"web-export","value":true}],` +
		`"exec":{"kind":"python:3","code":"def main(args): return args"}}`
	for _, tenant := range []access.Key{guest(t), s.ann} {
		if status, err := s.do(http.DefaultClient, "PUT", tenant,
			"/namespaces/_/actions/hello", web); status != 200 {
			t.Fatalf("HTTP %d, %v", status, err)
		}
	}
	return s
}

func (s *small) gone() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

func (s *small) do(by *http.Client, method string, key access.Key,
	path, body string) (status int, err error) {
	r, err := http.NewRequest(method, "http://"+s.address+"/api/v1"+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.SetBasicAuth(key.UUID, key.Secret)
	resp, err := by.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return resp.StatusCode, nil
}

// meanwhile makes ann call, on a new connection each time. calls ends that and returns the results.
func (s *small) meanwhile(t *testing.T) (calls func() (answered int, failed []string)) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 200)}}
	client := &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: dialer.DialContext},
		Timeout:   time.Minute, // it shares the processors with the storm's callers
	}
	call := func() (int, error) {
		return s.do(client, "POST", s.ann, "/namespaces/_/actions/hello?blocking=true", `{"a":1}`)
	}
	if status, err := call(); status != 200 {
		t.Fatalf("HTTP %d, %v", status, err)
	}
	var answered int
	var failed []string
	stop, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for {
			select {
			case <-stop:
				return
			default:
			}
			s.peak = max(s.peak, s.group.stat("memory.stat", "rss "),
				s.group.stat("memory.stat", "anon "))
			if status, err := call(); status == 200 {
				answered++
			} else {
				failed = append(failed, fmt.Sprint(status, " ", err))
			}
		}
	}()
	return func() (int, []string) {
		close(stop)
		<-over
		return answered, failed
	}
}

// storm makes all callers send their MiB at once, and counts their answers by status. Each accepted
// call keeps its sandbox for 100 ms.
func (s *small) storm(t *testing.T, how string) map[int]int {
	t.Helper()
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil ||
		files.Cur < callsAtOnce+500 {
		t.Skipf("%d callers need as many files open, and %d may be: %v",
			callsAtOnce, files.Cur, err)
	}
	head, tail := `{"sleep_ms":100,"a":"`, `"}`
	body := []byte(head + strings.Repeat("x", 1<<20-4096) + tail)
	path, auth := "/web/guest/default/hello.json", ""
	if how == "by one key" {
		path = "/namespaces/_/actions/hello?blocking=true&result=true"
		auth = "Authorization: Basic " +
			base64.StdEncoding.EncodeToString([]byte(guest(t).String())) + "\r\n"
	}
	request := fmt.Appendf(nil,
		"POST /api/v1%s HTTP/1.1\r\nHost: 127.0.0.1\r\n%sContent-Type: application/json\r\n"+
			"Connection: close\r\nContent-Length: %d\r\n\r\n", path, auth, len(body))
	begin := time.Now()
	var all sync.WaitGroup
	var mu sync.Mutex
	var ready atomic.Int64
	got, together := map[int]int{}, make(chan struct{})
	for n := range callsAtOnce {
		all.Go(func() {
			status := s.caller(n, request, body, func() {
				if ready.Add(1) == callsAtOnce {
					close(together)
				}
				<-together
			})
			mu.Lock()
			defer mu.Unlock()
			got[status]++
		})
	}
	all.Wait()
	t.Logf("%d calls in %v", callsAtOnce, time.Since(begin).Round(100*time.Millisecond))
	return got
}

// caller sends a request when all callers are ready, and returns the status of the answer, or 0
// without an answer.
func (s *small) caller(n int, request, body []byte, ready func()) (status int) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+n%8))},
		Timeout: 20 * time.Second}
	conn, err := dialer.DialContext(context.Background(), "tcp", s.address)
	ready()
	if err != nil {
		return 0
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write(request); err == nil {
		_, _ = conn.Write(body) // a refused request is answered before all of it was sent
	}
	answer, err := http.ReadResponse(bufio.NewReaderSize(conn, 512), nil)
	if err != nil {
		return 0
	}
	return answer.StatusCode
}

// A memoryGroup is a cgroup, version 1 or 2, with a memory limit, below the test's own.
type memoryGroup string

func newMemoryGroup(t *testing.T, limit int64) memoryGroup {
	t.Helper()
	base, file := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		base, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	}
	dir, err := os.MkdirTemp(base, "fastiov-test-")
	if err != nil {
		missing(t, "no memory cgroup can be made: "+err.Error())
	}
	t.Cleanup(func() {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			// busy until the last process has gone
			if err := os.Remove(dir); err == nil || time.Now().After(end) {
				if err != nil {
					t.Error(err)
				}
				return
			}
		}
	})
	if err := os.WriteFile(filepath.Join(dir, file),
		[]byte(strconv.FormatInt(limit, 10)), 0); err != nil {
		missing(t, "no memory cgroup can be given a limit: "+err.Error())
	}
	return memoryGroup(dir)
}

// command makes cmd run in the group from its first instruction.
func (g memoryGroup) command(cmd *exec.Cmd) *exec.Cmd {
	cmd.Args = append([]string{"sh", "-c", `echo $$ >"$0" && exec "$@"`,
		filepath.Join(string(g), "cgroup.procs"), cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	return cmd
}

// stat returns the number after the name in a file of the group, or 0.
func (g memoryGroup) stat(file, name string) (n int64) {
	content, _ := os.ReadFile(filepath.Join(string(g), file))
	for line := range strings.Lines(string(content)) {
		if count, is := strings.CutPrefix(line, name); is {
			n, _ = strconv.ParseInt(strings.TrimSpace(count), 10, 64)
		}
	}
	return n
}

// killed returns how many processes of the group the kernel killed for lack of memory.
func (g memoryGroup) killed() int64 {
	return g.stat("memory.oom_control", "oom_kill ") + g.stat("memory.events", "oom_kill ")
}
