package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/node-agent/api"
)

// TestACrashBreaksNoPromise kills the invoker without warning, five times in 10,000 calls, while a third of them block, a third do not and a
// third are sequences. Whatever was answered with 202 ends in exactly one record; a blocking call that was answered may lose its record
// only if it was answered just before a crash; and between invoker and agent somebody counts that nothing is sent twice.
func TestACrashBreaksNoPromise(t *testing.T) {
	if testing.Short() {
		t.Skip("makes ten thousand calls")
	}
	const crashes, calls, atOnce = 5, 10_000, 32
	dir := t.TempDir()
	background(t, "agent", "--sandbox", "sim", "--metrics", "", "--run-dir", filepath.Join(dir, "agent"), "--state-dir", dir)
	counter := countRuns(t, filepath.Join(dir, "agent", nodeSocket), filepath.Join(dir, "counted.sock"))
	w := &whisk{t: t, address: listenLater(t)}
	var err error
	if w.key, err = openwhisk.LoadKey(w.address, ""); err != nil {
		t.Fatal(err)
	}
	w.args = []string{"invoker", "--node", filepath.Join(dir, "counted.sock"), "--listen", w.address, "--run-dir", filepath.Join(dir, "run"), "--state-dir", dir, "--metrics", ""}
	w.start()
	defer func() { w.kill() }()
	w.put("single", helloAction)
	w.put("chain", `{"exec":{"kind":"sequence","components":["single","single"]}}`)

	var next, done atomic.Int64 // done counts the calls that were answered
	var mu sync.Mutex
	promises, answered := []string{}, map[string]time.Time{}
	var killed []time.Time
	var callers sync.WaitGroup
	for range atOnce {
		callers.Go(func() {
			for done.Load() < calls {
				n := next.Add(1)
				path := []string{"single?blocking=true", "single", "chain"}[n%3]
				id, status := w.invoke(path, fmt.Sprintf(`{"sleep_ms":%d}`, n%7))
				mu.Lock()
				switch status {
				case http.StatusAccepted:
					promises = append(promises, id)
					done.Add(1)
				case http.StatusOK:
					answered[id] = time.Now()
					done.Add(1)
				}
				mu.Unlock()
				if status == 0 {
					time.Sleep(time.Millisecond) // it is down
				}
			}
		})
	}
	for crash := range crashes {
		for done.Load() < int64((crash+1)*calls/(crashes+1)) {
			time.Sleep(time.Millisecond)
		}
		w.kill()
		killed = append(killed, time.Now())
		w.start()
	}
	callers.Wait()

	records := w.records(promises)
	for id, n := range records {
		if n > 1 {
			t.Errorf("%s has %d records", id, n)
		}
	}
	for _, id := range promises {
		if records[id] == 0 {
			t.Errorf("%s was promised and has no record", id)
		}
	}
	within, later := 0, 0
	for id, at := range answered {
		if records[id] > 0 {
			continue
		}
		within++
		for _, crash := range killed {
			if at.Before(crash) && crash.Sub(at) < time.Second { // far above the window: this machine may be busy
				later--
			}
		}
		later++
	}
	if later > 0 {
		t.Errorf("%d blocking calls lost their record, answered a second or more before a crash", later)
	}
	twice, runs := counter.twice()
	for _, id := range twice {
		t.Errorf("%s was sent twice", id)
	}
	t.Logf("%d calls, %d crashes: %d promised, each with one record; %d blocking ones answered, %d of them lost their record in a crash; %d runs sent, none twice",
		calls, crashes, len(promises), len(answered), within, runs)
}

// A whisk is an invoker that is killed and started again, and its API.
type whisk struct {
	t       *testing.T
	address string
	key     openwhisk.Key
	args    []string
	cmd     *exec.Cmd
}

func (w *whisk) start() {
	w.t.Helper()
	w.cmd = fastiov(w.t, w.args...)
	ready, theirs, err := os.Pipe()
	if err != nil {
		w.t.Fatal(err)
	}
	defer ready.Close()
	var said bytes.Buffer
	w.cmd.Stderr, w.cmd.ExtraFiles, w.cmd.Env = &said, []*os.File{theirs}, append(w.cmd.Env, readyFD+"=3")
	if err := w.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	theirs.Close()
	if n, err := ready.Read(make([]byte, 1)); n == 0 {
		_ = w.cmd.Wait()
		w.t.Fatalf("the invoker is not ready: %v\n%s", err, said.String())
	}
}

func (w *whisk) kill() {
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
}

// call returns the status, 0 if the invoker died over it.
func (w *whisk) call(method, path, body string, into any) (status int) {
	request, err := http.NewRequest(method, "http://"+w.address+"/api/v1/namespaces/_/"+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	request.SetBasicAuth(w.key.UUID, w.key.Secret)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil || json.Unmarshal(content, into) != nil {
		return 0
	}
	return response.StatusCode
}

func (w *whisk) put(name, action string) {
	w.t.Helper()
	if status := w.call("PUT", "actions/"+name, action, new(any)); status != http.StatusOK {
		w.t.Fatalf("PUT %s: %d", name, status)
	}
}

func (w *whisk) invoke(path, arguments string) (id string, status int) {
	var answer struct{ ActivationID string }
	status = w.call("POST", "actions/"+path, arguments, &answer)
	return answer.ActivationID, status
}

// records waits until every promise has a record and counts the records by their id.
func (w *whisk) records(promises []string) map[string]int {
	w.t.Helper()
	for _, id := range promises {
		for late := time.Now().Add(time.Minute); w.call("GET", "activations/"+id, "", new(any)) != http.StatusOK; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(late) {
				break
			}
		}
	}
	counts := map[string]int{}
	for skip := 0; ; {
		var page []struct{ ActivationID string }
		if status := w.call("GET", fmt.Sprintf("activations?limit=200&skip=%d", skip), "", &page); status != http.StatusOK {
			w.t.Fatalf("the list of activations from %d on: %d", skip, status)
		}
		for _, a := range page {
			counts[a.ActivationID]++
		}
		if len(page) == 0 {
			return counts
		}
		skip += len(page)
	}
}

// A runCounter stands between an invoker and its agent, passes everything on and counts what is run.
type runCounter struct {
	api.UnimplementedNodeServer
	to   api.NodeClient
	mu   sync.Mutex
	runs map[string]int // by activation
}

func countRuns(t *testing.T, agent, socket string) *runCounter {
	t.Helper()
	client, hangUp, err := api.Dial(agent, api.Keys{})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	c := &runCounter{to: client, runs: map[string]int{}}
	server := api.NewServer(c)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); hangUp() })
	return c
}

func (c *runCounter) Run(ctx context.Context, r *api.RunRequest) (*api.RunReply, error) {
	var body struct {
		ID string `json:"activation_id"`
	}
	if err := json.Unmarshal(r.Body, &body); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.runs[body.ID]++
	c.mu.Unlock()
	return c.to.Run(ctx, r)
}

func (c *runCounter) twice() (ids []string, runs int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, n := range c.runs {
		if runs += n; n > 1 {
			ids = append(ids, id)
		}
	}
	return ids, runs
}

func (c *runCounter) Start(ctx context.Context, r *api.StartRequest) (*api.StartReply, error) {
	return c.to.Start(ctx, r)
}
func (c *runCounter) Init(ctx context.Context, r *api.InitRequest) (*api.StartReply, error) {
	return c.to.Init(ctx, r)
}
func (c *runCounter) Stop(ctx context.Context, r *api.StopRequest) (*api.StopReply, error) {
	return c.to.Stop(ctx, r)
}
func (c *runCounter) Status(ctx context.Context, r *api.StatusRequest) (*api.StatusReply, error) {
	return c.to.Status(ctx, r)
}
func (c *runCounter) Pause(ctx context.Context, r *api.PauseRequest) (*api.PauseReply, error) {
	return c.to.Pause(ctx, r)
}
func (c *runCounter) Resume(ctx context.Context, r *api.ResumeRequest) (*api.ResumeReply, error) {
	return c.to.Resume(ctx, r)
}
