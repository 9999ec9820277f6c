package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/invoker/store/redis/redistest"
	"github.com/fastiov/fastiov/node-agent/api"
)

// Calls are made while the invoker is killed without warning and started again, also under other
// names, and while some clients leave. Over Redis there are two invokers, each with its own node;
// Redis stalls, and for a while both invokers have one name. A third of the calls block, a third do
// not, a third are sequences.
//
// Each call that was answered with 202 ends in exactly one record. An answered blocking call has at
// most one record, and none only if it was answered just before a crash. Nothing is sent twice, and
// nothing is sent after its caller was refused.
func TestACrashBreaksNoPromise(t *testing.T) {
	if testing.Short() {
		t.Skip("makes hundreds of calls")
	}
	t.Run("embedded", func(t *testing.T) {
		c := newCrashes(t, "")
		c.invoker()
		c.callWhile(c.kill, c.rename, c.kill, c.rename, c.kill)
	})
	t.Run("redis", func(t *testing.T) {
		server := redistest.Start(t)
		c := newCrashes(t, server.URL())
		c.invoker()
		c.invoker()
		c.callWhile(c.kill, c.rename, c.twins, c.rename, c.kill,
			// a stall in which calls give up waiting for Redis, and a crash as soon as a caller was
			// refused
			func() {
				from, before := c.losesFrom(c.invokers...), c.toldNo()
				server.Stop(t)
				for end := time.Now().Add(12 * time.Second); c.toldNo() == before &&
					time.Now().Before(end); {
					time.Sleep(time.Millisecond)
				}
				for _, w := range c.invokers {
					w.kill()
				}
				c.kills = append(c.kills, crash{from, time.Now()})
				server.Continue(t)
				for _, w := range c.invokers {
					c.start(w)
				}
			},
			func() {
				server.Stop(t)
				time.Sleep(5 * time.Second)
				server.Continue(t)
				for _, w := range c.invokers { // then everything answered meanwhile is in Redis
					c.settle(w)
				}
			})
	})
}

// crashes holds calls, their results, and what happens to the called invokers.
type crashes struct {
	t        *testing.T
	seed     uint64
	random   *rand.Rand
	dir      string
	store    string
	runs     *runCounter
	invokers []*whisk
	names    int
	kills    []crash

	mu       sync.Mutex        // guards the fields below
	promised []string          // ids
	answered map[string]answer // to blocking calls, by id
	refused  []int64           // numbers of calls
	done     atomic.Int64      // counts answered calls
}

// A crash loses the records of blocking calls that were answered during this time.
type crash struct{ from, to time.Time }

// An answer may be heard after the crash of who gave it, but it was asked for before.
type answer struct{ asked, heard time.Time }

func newCrashes(t *testing.T, store string) *crashes {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("FASTIOV_TEST_CHAOS_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("FASTIOV_TEST_CHAOS_SEED=%d", seed)
	return &crashes{
		t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 0)), dir: t.TempDir(), store: store,
		runs:     &runCounter{runs: map[string]int{}, of: map[int64]int{}},
		answered: map[string]answer{},
	}
}

// invoker starts one more invoker with its own node. The node's agent gets these flags.
func (c *crashes) invoker(node ...string) {
	n := fmt.Sprint(len(c.invokers))
	agent, state := filepath.Join(c.dir, "agent"+n), filepath.Join(c.dir, "state")
	background(c.t, append([]string{"agent", "--sandbox", "sim", "--metrics", "",
		"--run-dir", agent, "--state-dir", filepath.Join(c.dir, "node"+n)}, node...)...)
	counted := filepath.Join(c.dir, "counted"+n)
	c.runs.stand(c.t, filepath.Join(agent, nodeSocket), counted)
	w := &whisk{t: c.t, address: listenLater(c.t)}
	var err error
	if w.key, err = openwhisk.LoadKey(w.address, ""); err != nil {
		c.t.Fatal(err)
	}
	w.args = []string{"invoker", "--node", counted, "--listen", w.address, "--run-dir",
		filepath.Join(c.dir, "run"+n),
		"--state-dir", state, "--metrics", "", "--store", c.store}
	w.name = c.name()
	c.start(w)
	c.t.Cleanup(w.kill)
	c.invokers = append(c.invokers, w)
}

func (c *crashes) name() string {
	c.names++
	return fmt.Sprint("host-", c.names)
}

func (c *crashes) any() *whisk { return c.invokers[c.random.IntN(len(c.invokers))] }

func (c *crashes) crash(w *whisk) {
	from := c.losesFrom(w)
	w.kill()
	c.kills = append(c.kills, crash{from, time.Now()})
}

// losesFrom returns from when on a crash of these invokers now may lose records. A promise proves
// that the disk takes what came before, and a disk may stall after it.
func (c *crashes) losesFrom(invokers ...*whisk) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	from := time.Now()
	for _, w := range invokers {
		if w.promised.Before(from) {
			from = w.promised
		}
	}
	return from.Add(-time.Second) // far more than the window, because this machine may be busy
}

// start starts an invoker, which has promised nothing yet.
func (c *crashes) start(w *whisk) {
	c.mu.Lock()
	w.promised = time.Now()
	c.mu.Unlock()
	w.start()
}

func (c *crashes) kill() {
	w := c.any()
	c.crash(w)
	c.start(w)
}

func (c *crashes) rename() {
	w := c.any()
	c.crash(w)
	w.name = c.name()
	c.start(w)
}

// twins gives one invoker the other's name. It then refuses every caller until it gets a new name.
func (c *crashes) twins() {
	first, second := c.invokers[0], c.invokers[1]
	c.crash(second)
	second.name = first.name
	c.start(second)
	for late := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, status := first.invoke(c.t.Context(),
			"single?blocking=true", "{}"); status == http.StatusServiceUnavailable {
			break
		} else if time.Now().After(late) {
			c.t.Errorf("who was replaced answers %d", status)
			break
		}
	}
	c.crash(first)
	first.name = c.name()
	c.start(first)
}

// callWhile makes at least that many calls, lets all of happens happen meanwhile in some order, and
// judges.
func (c *crashes) callWhile(happens ...func()) {
	t, calls := c.t, int64(600)
	if text := os.Getenv("FASTIOV_TEST_CRASH_CALLS"); text != "" {
		var err error
		if calls, err = strconv.ParseInt(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	c.invokers[0].put("single", helloAction)
	c.invokers[0].put("chain", `{"exec":{"kind":"sequence","components":["single","single"]}}`)
	for _, w := range c.invokers { // an invoker may learn of it later
		for late := time.Now().Add(2 * time.Minute); w.call(t.Context(), "GET", "actions/chain", "",
			new(any)) != http.StatusOK; time.Sleep(time.Millisecond) {
			if time.Now().After(late) {
				c.fatal("an invoker does not learn of an action")
			}
		}
	}
	var next, most atomic.Int64 // next counts calls; at most most of them may be answered so far
	var over atomic.Bool
	var callers sync.WaitGroup
	t.Cleanup(callers.Wait) // they end with the test, also where it fails
	for caller := range 32 {
		random := rand.New(rand.NewPCG(c.seed, uint64(caller+1)))
		callers.Go(func() {
			for t.Context().Err() == nil && (!over.Load() || c.done.Load() < calls) {
				if c.done.Load() < most.Load() {
					c.call(next.Add(1), random)
				}
				time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
			}
		})
	}
	c.random.Shuffle(len(happens), func(i, j int) {
		happens[i], happens[j] = happens[j], happens[i]
	})
	for _, happen := range happens {
		at := c.done.Load() + calls/int64(len(happens)+1)
		most.Store(at + calls/4)
		for late := time.Now().Add(2 * time.Minute); c.done.Load() < at; time.Sleep(
			time.Millisecond) {
			if time.Now().After(late) {
				c.fatal(fmt.Sprintf("%d calls are answered, not %d", c.done.Load(), at))
			}
		}
		happen()
	}
	over.Store(true)
	most.Store(math.MaxInt64)
	callers.Wait()
	c.judge()
}

// fatal ends the test with what the invokers have said.
func (c *crashes) fatal(why string) {
	c.t.Helper()
	for _, w := range c.invokers {
		w.kill()
		why += fmt.Sprintf("\n%s said:\n%s", w.name, w.said.String())
	}
	c.t.Fatal(why)
}

func (c *crashes) toldNo() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.refused)
}

// settle returns when all records of an invoker are in the store.
func (c *crashes) settle(w *whisk) {
	id, status := w.invoke(c.t.Context(), "single", "{}")
	if status != http.StatusAccepted {
		c.t.Errorf("a call after a stall is answered with %d", status)
	}
	w.await(id, time.Now().Add(2*time.Minute))
}

func (c *crashes) call(n int64, random *rand.Rand) {
	ctx, leave := c.t.Context(), context.CancelFunc(func() {})
	if random.IntN(10) == 0 {
		ctx, leave = context.WithTimeout(ctx, time.Duration(random.IntN(20))*time.Millisecond)
	}
	defer leave()
	path := []string{"single?blocking=true", "single", "chain"}[n%3]
	w := c.invokers[random.IntN(len(c.invokers))]
	asked := time.Now()
	id, status := w.invoke(ctx, path, fmt.Sprintf(`{"n":%d,"sleep_ms":%d}`, n, n%7))
	c.mu.Lock()
	defer c.mu.Unlock()
	switch status {
	case http.StatusAccepted:
		c.promised = append(c.promised, id)
		if asked.After(w.promised) {
			w.promised = asked
		}
		c.done.Add(1)
	case http.StatusOK, http.StatusInternalServerError: // 500: its code could not be read
		c.answered[id] = answer{asked, time.Now()}
		c.done.Add(1)
	case http.StatusServiceUnavailable:
		c.refused = append(c.refused, n)
	case 0: // the invoker is down, or this client has left
	default:
		c.t.Errorf("call %d of %s is answered with %d", n, path, status)
	}
}

func (c *crashes) judge() {
	t := c.t
	records := c.invokers[0].records(c.promised)
	for id, n := range records {
		if n > 1 {
			t.Errorf("%s has %d records", id, n)
		}
	}
	for _, id := range c.promised {
		if records[id] == 0 {
			t.Errorf("%s was promised and has no record", id)
		}
	}
	lost := 0
	for id, a := range c.answered {
		if records[id] > 0 {
			continue
		}
		lost++
		if !slices.ContainsFunc(c.kills, func(k crash) bool {
			return a.heard.After(k.from) && a.asked.Before(k.to)
		}) {
			t.Errorf("%s was answered at %v, not just before a crash, and has no record", id,
				a.heard)
		}
	}
	c.runs.mu.Lock()
	defer c.runs.mu.Unlock()
	for id, n := range c.runs.runs {
		if n > 1 {
			t.Errorf("%s was sent %d times", id, n)
		}
	}
	for _, n := range c.refused {
		if c.runs.of[n] > 0 {
			t.Errorf("call %d was sent, and its caller was told no", n)
		}
	}
	t.Logf(
		"%d crashes: %d promised, each with one record; %d blocking ones answered, %d of them lost their record in a crash;"+
			" %d told no; %d runs sent, none twice", len(c.kills), len(c.promised), len(c.answered),
		lost, len(c.refused), len(c.runs.runs))
}

// A whisk is an invoker that is killed and started again, and its API.
type whisk struct {
	t       *testing.T
	address string
	key     openwhisk.Key
	name    string
	metrics string
	args    []string
	cmd     *exec.Cmd
	said    *bytes.Buffer // by cmd; read it when cmd has ended
	// when the last call was asked for that it promised since its start, or its start
	promised time.Time
}

func (w *whisk) start() {
	w.t.Helper()
	w.cmd = fastiov(w.t, append(w.args[:len(w.args):len(w.args)], "--name", w.name)...)
	ready, theirs, err := os.Pipe()
	if err != nil {
		w.t.Fatal(err)
	}
	defer ready.Close()
	w.said = new(bytes.Buffer)
	w.cmd.Stderr, w.cmd.ExtraFiles, w.cmd.Env = w.said, []*os.File{theirs},
		append(w.cmd.Env, readyFD+"=3")
	if err := w.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	theirs.Close()
	if n, err := ready.Read(make([]byte, 1)); n == 0 {
		_ = w.cmd.Wait()
		w.t.Fatalf("the invoker is not ready: %v\n%s", err, w.said.String())
	}
}

func (w *whisk) kill() {
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
}

// call returns the status, or 0 if the invoker died during the call.
func (w *whisk) call(ctx context.Context, method, path, body string, into any) (status int) {
	request, err := http.NewRequestWithContext(ctx, method,
		"http://"+w.address+"/api/v1/namespaces/_/"+path, strings.NewReader(body))
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
	if status := w.call(w.t.Context(), "PUT", "actions/"+
		name, action, new(any)); status != http.StatusOK {
		w.t.Fatalf("PUT %s: %d", name, status)
	}
}

func (w *whisk) invoke(ctx context.Context, path, arguments string) (id string, status int) {
	var answer struct{ ActivationID string }
	status = w.call(ctx, "POST", "actions/"+path, arguments, &answer)
	return answer.ActivationID, status
}

// records waits until every promise has a record, and counts the records by id.
func (w *whisk) records(promises []string) map[string]int {
	w.t.Helper()
	late := time.Now().Add(2 * time.Minute)
	for _, id := range promises {
		w.await(id, late)
	}
	counts := map[string]int{}
	for skip := 0; ; {
		var page []struct{ ActivationID string }
		if status := w.call(w.t.Context(), "GET", fmt.Sprintf("activations?limit=200&skip=%d",
			skip), "", &page); status != http.StatusOK {
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

// await returns when an activation has a record, or when it is late.
func (w *whisk) await(id string, late time.Time) {
	for w.call(w.t.Context(), "GET", "activations/"+id, "", new(any)) != http.StatusOK &&
		time.Now().Before(late) {
		time.Sleep(10 * time.Millisecond)
	}
}

// A runCounter stands between an invoker and its agent. It passes everything on and counts what is
// run.
type runCounter struct {
	mu   sync.Mutex
	runs map[string]int // by activation
	of   map[int64]int  // by the number of the call

	turns chan struct{} // each value lets one waiting run through; nil: runs do not wait
}

// A counted is an agent behind a runCounter.
type counted struct {
	api.UnimplementedNodeServer
	to api.NodeClient
	by *runCounter
}

func (c *runCounter) stand(t *testing.T, agent, socket string) {
	t.Helper()
	client, hangUp, err := api.Dial(agent, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hangUp)
	serveNode(t, socket, &counted{to: client, by: c})
}

// serveNode serves a node's API on a Unix socket until the test ends.
func serveNode(t *testing.T, socket string, node api.NodeServer) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := api.NewServer(node, slog.New(slog.DiscardHandler))
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
}

func (c *counted) Run(ctx context.Context, r *api.RunRequest) (*api.RunReply, error) {
	var body struct {
		ID    string `json:"activation_id"`
		Value struct{ N int64 }
	}
	if err := json.Unmarshal(r.Body, &body); err != nil {
		return nil, err
	}
	c.by.mu.Lock()
	c.by.runs[body.ID]++
	c.by.of[body.Value.N]++
	c.by.mu.Unlock()
	if c.by.turns != nil {
		select {
		case <-c.by.turns:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	return c.to.Run(ctx, r)
}

func (c *counted) Start(ctx context.Context, r *api.StartRequest) (*api.StartReply, error) {
	return c.to.Start(ctx, r)
}
func (c *counted) Init(ctx context.Context, r *api.InitRequest) (*api.StartReply, error) {
	return c.to.Init(ctx, r)
}
func (c *counted) Stop(ctx context.Context, r *api.StopRequest) (*api.StopReply, error) {
	return c.to.Stop(ctx, r)
}
func (c *counted) Status(ctx context.Context, r *api.StatusRequest) (*api.StatusReply, error) {
	return c.to.Status(ctx, r)
}
func (c *counted) Pause(ctx context.Context, r *api.PauseRequest) (*api.PauseReply, error) {
	return c.to.Pause(ctx, r)
}
func (c *counted) Resume(ctx context.Context, r *api.ResumeRequest) (*api.ResumeReply, error) {
	return c.to.Resume(ctx, r)
}
