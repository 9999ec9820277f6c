package command

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/command/settings"
	exampleapi "github.com/fastiov/fastiov/examples/api"
	exampledriver "github.com/fastiov/fastiov/examples/driver"
	"github.com/fastiov/fastiov/examples/exampletest"
	examplepath "github.com/fastiov/fastiov/examples/netpath"
	"github.com/fastiov/fastiov/functions"
	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/node-agent/agent"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/cgroup"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// The three rows of docs/adding.md. These tests alone put them into the tables.

const addresses = 3

// loopback leases each sandbox an address of this machine.
func loopback(
	_ context.Context, _ *node, f *nodeFlags, cfg *agent.Config,
) (_ startup.NetPath, err error) {
	if cfg.Starter.Network, err = f.network(); err != nil {
		return nil, err
	}
	return examplepath.Open(filepath.Join(f.runDir, "loopback"), addresses)
}

var processes = driver{
	name: "process", note: "a process without a wall", root: true, memory: true,
	network: loopback, overhead: func(bool) int { return 0 }, open: openProcesses,
}

func openProcesses(
	_ context.Context, n *node, _ *nodeFlags, _ *image.Set,
) (sandbox.Driver, error) {
	command, err := exampletest.Command()
	if err != nil {
		return nil, err
	}
	root, err := cgroup.Open("fastiov-example")
	if err != nil {
		return nil, err
	}
	n.onClose(root.Remove)
	return exampledriver.Driver{Command: command, Root: root}, nil
}

var plain = wing{open: func(
	_ *front, whisk *openwhisk.API, next http.Handler,
) (http.Handler, func(), error) {
	api := exampleapi.New(whisk.Pool(), whisk.Admit)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, exampleapi.Path) {
			api.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	}), func() {}, nil
}}

// A product runs fastiov with the three rows until its test ends.
type product struct {
	t       *testing.T
	runDir  string
	address string // of the invoker
	node    api.NodeClient
}

func withExamples(t *testing.T) *product {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make cgroups")
	}
	d, w := drivers, wings
	drivers, wings = append(drivers[:len(d):len(d)], processes), append(wings, plain)
	t.Cleanup(func() { drivers, wings = d, w })
	t.Setenv(settings.FileVariable, settings.NoFile)
	return &product{t: t, runDir: filepath.Join(t.TempDir(), "run")}
}

// agent runs an agent, and returns what ends it.
func (p *product) agent() (end func()) {
	p.t.Helper()
	over := p.run("agent", "--sandbox", "process", "--memory", "2048", "--subnet", "127.92.0.0/24",
		"--first-address", "127.92.0.1", "--gateway", "127.0.0.1", "--dns", "127.0.0.1")
	node, hangUp, err := dialNode(p.runDir)
	if err != nil {
		p.t.Fatal(err)
	}
	p.node = node
	return func() {
		hangUp()
		over()
	}
}

// invoker runs an invoker over the agent until the test ends.
func (p *product) invoker() {
	p.t.Helper()
	p.t.Cleanup(p.run("invoker", "--listen", "127.0.0.1:0"))
	addresses, err := readListen(p.runDir)
	if err != nil {
		p.t.Fatal(err)
	}
	p.address = addresses[0]
}

// run runs a command of the product, and returns once it is ready.
func (p *product) run(args ...string) (end func()) {
	p.t.Helper()
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		p.t.Fatal(err)
	}
	waiting = &parent{ends[1]} // which closes it
	defer unix.Close(ends[0])
	root := rootCmd()
	root.SetArgs(append(args, "--run-dir", p.runDir, "--state-dir", filepath.Dir(p.runDir),
		"--metrics", "", "--log-level", "error"))
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() {
		err := root.ExecuteContext(ctx)
		if err != nil && waiting.fd >= 0 {
			waiting.tell(err.Error())
			unix.Close(waiting.fd)
		}
		over <- err
	}()
	said := make([]byte, 1000)
	n, err := unix.Read(ends[0], said)
	if err != nil || string(said[:n]) != ready+"\n" {
		p.t.Fatalf("fastiov %s: %s%v", args[0], said[:max(n, 0)], err)
	}
	return func() {
		cancel()
		if err := <-over; err != nil {
			p.t.Errorf("fastiov %s ended with %v", args[0], err)
		}
	}
}

func (p *product) status() *api.StatusReply {
	p.t.Helper()
	st, err := p.node.Status(p.t.Context(), &api.StatusRequest{})
	if err != nil {
		p.t.Fatal(err)
	}
	return st
}

func (p *product) start(id string, wait time.Duration) error {
	_, err := p.node.Start(p.t.Context(), &api.StartRequest{
		Id: id, Image: "any", MemoryMib: 256, Protocol: "http", WaitMs: uint32(wait.Milliseconds()),
	})
	return err
}

// nothingLeft ends the sandboxes and checks that nothing of them is there any more.
func (p *product) nothingLeft() {
	p.t.Helper()
	if _, err := p.node.Drain(p.t.Context(), &api.DrainRequest{Cancel: true}); err != nil {
		p.t.Fatal(err)
	}
	st := p.status()
	leases, err := os.ReadDir(filepath.Join(p.runDir, "loopback"))
	if len(st.Sandboxes) != 0 || len(st.Leftovers) != 0 || len(leases) != 0 || err != nil {
		p.t.Errorf("left: %v, leases %v, %v", st, leases, err)
	}
}

// One row and one package make a driver: OpenWhisk's actions run in its sandboxes.
func TestTheExampleDriver(t *testing.T) {
	p := withExamples(t)
	t.Cleanup(p.agent())
	p.invoker()
	key, err := openwhisk.LoadKey(p.address, "")
	if err != nil {
		t.Fatal(err)
	}
	b := bench.Burst{
		URL: "http://" + p.address, Key: key.String(), Name: "example", N: addresses, Rounds: 1,
		Memory: 256, Kind: "python:3", Code: functions.HelloPython, Out: io.Discard,
	}
	result, err := b.Run(t.Context())
	if err != nil || result.Answered != addresses || result.Leaked != 0 ||
		p.status().Driver != processes.name {
		t.Errorf("%+v, %v", result, err)
	}
	p.nothingLeft()
}

// One row and one package make a path to the network: each sandbox has an address of its own, none
// is started beyond that, and an address comes back whose sandbox a former agent has lost.
func TestTheExampleNetPath(t *testing.T) {
	p := withExamples(t)
	path, err := examplepath.Open(filepath.Join(p.runDir, "loopback"), addresses)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := path.Lease("former"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.agent())
	for n := range addresses {
		if err := p.start(fmt.Sprint("s", n), time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.start("late", 0); status.Code(err) != codes.ResourceExhausted ||
		!strings.Contains(err.Error(), "addresses is free") {
		t.Errorf("one more: %v", err)
	}
	for n := range addresses {
		at := fmt.Sprintf("http://127.92.0.%d:8080/", n+1)
		answer, err := http.Get(at)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Body.Close(); answer.StatusCode != 200 {
			t.Errorf("%s answers %s", at, answer.Status)
		}
	}
	p.nothingLeft()
	if answer, err := http.Get("http://127.92.0.1:8080/"); err == nil {
		answer.Body.Close()
		t.Error("a sandbox that has ended answers")
	}
}

// One row and one package make an API beside OpenWhisk's, over the same sandboxes.
func TestTheExampleAPI(t *testing.T) {
	p := withExamples(t)
	t.Cleanup(p.agent())
	p.invoker()
	key, err := openwhisk.LoadKey(p.address, "")
	if err != nil {
		t.Fatal(err)
	}
	ask := func(path, user, secret, body string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+p.address+path,
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.SetBasicAuth(user, secret)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(text)
	}
	user, secret, _ := strings.Cut(key.String(), ":")
	long := strings.Repeat("0123456789", 100_000)
	for _, body := range []string{"", "hello", long} {
		if code, said := ask("/run/any/echo", user, secret, body); code != 200 || said != body {
			t.Errorf("%d bytes are answered %d with %d bytes", len(body), code, len(said))
		}
	}
	if code, _ := ask("/run/any/echo", user, "wrong", ""); code != 401 {
		t.Errorf("a wrong key is answered %d", code)
	}
	if code, _ := ask("/api/v1/namespaces/_/actions/none", user, secret, "{}"); code != 404 {
		t.Errorf("OpenWhisk's API answers %d for an action that is not there", code)
	}
	if st := p.status(); len(st.Sandboxes) != 1 {
		t.Errorf("three requests, one after the other, started %v", st.Sandboxes)
	}
	p.nothingLeft()
}
