//go:build knative

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	clients "knative.dev/serving/pkg/client/clientset/versioned/typed/serving/v1"

	"github.com/fastiov/fastiov/node-agent/api"
)

// A service is rolled while 10,000 requests are open in its programs, and others come. Each of them
// is answered whole: those that were open by the revision that had them, and those that come once
// the second has the traffic by that.
func TestARollFailsNothing(t *testing.T) {
	const connections, each = 100, 100
	k := newApart(t, 2, "--concurrent-invocations", "20000") // two have the descriptors for it
	s := service("rolled", "example.com/rolled:1")
	s.Spec.Template.Spec.ContainerConcurrency = ptr.To[int64](100)
	s = k.create(s)
	u := s.Status.URL.String()

	var open, failed atomic.Int64
	var all sync.WaitGroup
	opened, rolled := make(chan struct{}), make(chan struct{})
	fail := func(err error) {
		if failed.Add(1) <= 5 {
			t.Error(err)
		}
	}
	for range connections {
		client := k.client()
		client.Timeout = 5 * time.Minute
		transport := client.Transport.(*http.Transport)
		transport.DisableKeepAlives = false
		transport.Protocols = &http.Protocols{}
		transport.Protocols.SetUnencryptedHTTP2(true)
		defer transport.CloseIdleConnections()
		for range each {
			all.Go(func() {
				if err := echoes(client, u, func() {
					if open.Add(1) == connections*each {
						close(opened)
					}
					<-rolled
				}); err != nil {
					fail(err)
				}
			})
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var asked, second atomic.Int64
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				switch of, err := k.revision(u); {
				case err != nil:
					fail(err)
				case of == "rolled-00002":
					second.Add(1)
				}
				asked.Add(1)
			}
		})
	}
	select {
	case <-opened:
	case <-time.After(4 * time.Minute):
		t.Errorf("%d are open", open.Load())
	}
	held, err := k.held()
	if err != nil {
		t.Fatal(err)
	}
	s, err = k.Services("guest").Patch(ctx, "rolled", types.MergePatchType, []byte(`{"spec":{
		"template":{"spec":{"containers":[{"image":"example.com/rolled:2"}]}}}}`),
		metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s = k.await(s); !s.IsReady() {
		t.Errorf("%+v", s.Status)
	}
	if of, err := k.revision(u); err != nil || of != "rolled-00002" {
		t.Errorf("then %s answers, %v", of, err)
	}
	close(rolled)
	time.Sleep(time.Second) // of requests that come to the second revision
	stop()
	all.Wait()
	t.Logf("%d open in %d sandboxes, %d others, %d of them by the second revision, %d failed",
		open.Load(), len(held), asked.Load(), second.Load(), failed.Load())
	if failed.Load() > 0 || second.Load() == 0 || asked.Load() == second.Load() {
		t.Errorf("%d failed", failed.Load())
	}
	if n := int(open.Load()) / each; len(held) < n {
		t.Errorf("%d sandboxes have what %d take", len(held), n)
	}
}

// echoes sends a body of two parts, the second when the first is back and meanwhile has returned.
func echoes(client *http.Client, u string, meanwhile func()) error {
	from, to := io.Pipe()
	defer from.Close()
	r, err := http.NewRequest(http.MethodPost, u, from)
	if err != nil {
		return err
	}
	go func() { _, _ = io.WriteString(to, "first") }()
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	first := make([]byte, len("first"))
	if _, err := io.ReadFull(answer.Body, first); err != nil {
		return fmt.Errorf("%s: %w", answer.Status, err)
	}
	meanwhile()
	go func() {
		_, _ = io.WriteString(to, "second")
		_ = to.Close()
	}()
	rest, err := io.ReadAll(answer.Body)
	if text := string(first) + string(rest); err != nil || text != "firstsecond" {
		return fmt.Errorf("%s: %q, %w", answer.Status, text, err)
	}
	return nil
}

// revision returns which revision answers at a URL.
func (k *knative) revision(u string) (string, error) {
	answer, err := k.client().Get(u + "/env")
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	var env map[string]string
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		return "", fmt.Errorf("%s: %s", answer.Status, text)
	}
	err = json.NewDecoder(answer.Body).Decode(&env)
	return env["K_REVISION"], err
}

// Invoker and agent are killed under load, in turns. Each time services, traffic and scale are back
// as they were, and no request fails from then on.
func TestAKillUnderLoadLeavesWhatWasSaid(t *testing.T) {
	k := newApart(t, 1)

	// services with two sandboxes each, a second revision, and a tag at the first
	const services, least = 10, 2
	want := map[string]string{}
	for n := range services {
		s := service(fmt.Sprint("stays-", n), "example.com/stays:1")
		s.Spec.Template.Annotations = map[string]string{
			"autoscaling.knative.dev/min-scale": fmt.Sprint(least)}
		s = k.create(s)
		s.Spec.Template.Spec.Containers[0].Image = "example.com/stays:2"
		s.Spec.Traffic = []v1.TrafficTarget{
			{LatestRevision: ptr.To(true), Percent: ptr.To[int64](100)},
			{RevisionName: s.Name + "-00001", Tag: "old"}}
		s, err := k.Services("guest").Update(t.Context(), s, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s = k.await(s)
		want[s.Status.URL.String()] = s.Name + "-00002"
		for _, to := range s.Status.Traffic {
			if to.URL != nil {
				want[to.URL.String()] = s.Name + "-00001"
			}
		}
	}
	if len(want) != 2*services {
		t.Fatalf("%d URLs", len(want))
	}
	scaled := func() bool {
		states, err := k.held()
		return err == nil && len(states) == 2*services*least && !slices.ContainsFunc(states,
			func(state string) bool { return state != "ready" && state != "paused" })
	}
	eventually(t, scaled)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	var whole atomic.Bool // nothing is away
	var answered, failed atomic.Int64
	for u, of := range want {
		load.Go(func() {
			for ctx.Err() == nil {
				before := whole.Load()
				got, err := k.revision(u)
				switch during := before && whole.Load(); {
				case err == nil && got == of:
					answered.Add(1)
				case err == nil:
					t.Errorf("%s is answered by %s", u, got)
				case during:
					failed.Add(1)
					t.Errorf("%s: %v", u, err)
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	for _, turn := range []*killed{k.invoker, k.agents[0], k.invoker, k.agents[0]} {
		before := answered.Load()
		whole.Store(true)
		time.Sleep(time.Second)
		whole.Store(false)
		if answered.Load() == before {
			t.Error("for a second nothing was answered, while nothing was away")
		}
		turn.kill(t)
		turn.start(t)
		for u, of := range want {
			eventually(t, func() bool {
				got, err := k.revision(u)
				return err == nil && got == of
			})
		}
		eventually(t, scaled)
		all, err := k.Services("guest").List(ctx, metav1.ListOptions{})
		if err != nil || len(all.Items) != services {
			t.Fatalf("%d services, %v", len(all.Items), err)
		}
		eventually(t, func() bool {
			all, err := k.Services("guest").List(ctx, metav1.ListOptions{})
			return err == nil && !slices.ContainsFunc(all.Items,
				func(s v1.Service) bool { return !s.IsReady() })
		})
	}
	whole.Store(true)
	time.Sleep(time.Second)
	stop()
	load.Wait()
	t.Logf("%d answered, %d failed while all was there", answered.Load(), failed.Load())
}

// An apartKnative is an invoker with Knative's own client, and its nodes, in processes of their own
// that a test can kill.
type apartKnative struct {
	*knative
	invoker *killed
	agents  []*killed
	nodes   []string // their sockets
}

func newApart(t *testing.T, nodes int, args ...string) *apartKnative {
	t.Helper()
	k := &apartKnative{knative: &knative{t: t, dir: t.TempDir(), address: listenLater(t)}}
	for n := range nodes {
		dir := filepath.Join(k.dir, fmt.Sprint("node-", n))
		socket := filepath.Join(dir, nodeSocket)
		agent := &killed{up: func() bool { _, err := k.on(socket); return err == nil }}
		agent.args = []string{"agent", "--sandbox", "sim", "--sim-start", "1ms", "--metrics", "",
			"--memory", "262144", "--run-dir", dir, "--state-dir", dir}
		agent.start(t)
		k.agents, k.nodes = append(k.agents, agent), append(k.nodes, socket)
		args = append(args, "--node", socket)
	}
	k.invoker = &killed{args: append([]string{"invoker", "--listen", k.address, "--run-dir",
		k.run(), "--state-dir", k.dir, "--metrics", ""}, args...), up: func() bool {
		conn, err := net.Dial("tcp", k.address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}}
	k.invoker.start(t)
	k.config = k.as("")
	k.ServingV1Interface = clients.NewForConfigOrDie(k.config)
	return k
}

// held returns the states of all sandboxes.
func (k *apartKnative) held() (states []string, err error) {
	for _, socket := range k.nodes {
		here, err := k.on(socket)
		if err != nil {
			return nil, err
		}
		states = append(states, here...)
	}
	return states, nil
}

func (k *apartKnative) on(socket string) (states []string, err error) {
	node, hangUp, err := api.Dial(socket, nil)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	status, err := node.Status(k.t.Context(), &api.StatusRequest{})
	for _, s := range status.GetSandboxes() {
		states = append(states, s.State)
	}
	return states, err
}

// A killed command is one that a test ends without warning and starts again.
type killed struct {
	args []string
	up   func() bool
	cmd  *exec.Cmd
}

func (c *killed) start(t *testing.T) {
	t.Helper()
	c.cmd = fastiov(t, c.args...)
	start(t, c.cmd)
	eventually(t, c.up)
}

func (c *killed) kill(t *testing.T) {
	t.Helper()
	err := c.cmd.Process.Kill()
	_, _ = c.cmd.Process.Wait()
	if err != nil {
		t.Fatal(err)
	}
}
