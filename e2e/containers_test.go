//go:build containers

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/functions"
	"github.com/fastiov/fastiov/functions/functionstest"
	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/netns"
)

// These tests run functions in containers, by Debian's containerd and runc. Each test has a network
// of its own, which is the host of its topology:
//
//	sandbox ═ bridge, host 198.18.0.2 ═ world 198.18.0.1, with the storage

// world is a network behind the host. What comes to a port there is passed on to the same port of
// this host's loopback device.
func world(t *testing.T, port string) (address string) {
	t.Helper()
	namespace, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}, PeerName: "eth0",
		PeerNamespace: netlink.NsFd(namespace.Fd())}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { namespace.Close() })
	var l net.Listener
	if err := errors.Join(up("uplink", "198.18.0.2/24"), netns.Inside(namespace, func() error {
		if err := up("eth0", "198.18.0.1/24"); err != nil {
			return err
		}
		l, err = net.Listen("tcp4", "198.18.0.1:"+port)
		return err
	})); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				to, err := net.Dial("tcp4", "127.0.0.1:"+port)
				if err != nil {
					return
				}
				defer to.Close()
				go func() { _, _ = io.Copy(to, from); _ = to.(*net.TCPConn).CloseWrite() }()
				_, _ = io.Copy(from, to)
			}()
		}
	}()
	return "198.18.0.1:" + port
}

// A burst is answered, its time is accounted for, and nothing of it is left; then every sample
// function answers as natively.
func TestFunctionsInContainers(t *testing.T) {
	inNetwork(t, func() {
		functionsInContainers(t, func() {}, func(string) {}, "--metrics", "")
	})
}

// functionsInContainers has a node with these flags run all sample functions. before them, when the
// host has its uplink, and behind them, while the node with that run directory is up, comes what
// else is asked.
func functionsInContainers(t *testing.T, before func(), behind func(run string), flags ...string) {
	dir := shortDir(t)
	run := filepath.Join(dir, "run")
	node := []string{"--run-dir", run, "--state-dir", filepath.Join(dir, "state")}
	downAfter(t, run)
	said := must(t, slices.Concat([]string{"up", "--sandbox", "containerd"}, flags, node)...)
	if !strings.Contains(said, "containers, which share this machine's kernel") {
		t.Errorf("up does not say that sandboxes are containers: %s", said)
	}
	var burst bench.BurstResult
	if err := json.Unmarshal([]byte(must(t, append([]string{"burst", "--n", "20", "--json"},
		node...)...)), &burst); err != nil {
		t.Fatal(err)
	}
	if burst.Driver != "containerd" || burst.Answered != 20 || burst.Leaked != 0 ||
		burst.StageCoverage.Median < 0.95 {
		t.Errorf("%+v", burst)
	}
	t.Logf("burst of 20: end to end %+v, coverage %+v", burst.EndToEnd, burst.StageCoverage)
	key, err := openwhisk.LoadKey("127.0.0.1:3233", "")
	if err != nil {
		t.Fatal(err)
	}
	functionsIn(t, key.String(), before)
	behind(run)
	must(t, "down", "--run-dir", run)
	nothingOf(t, run)
}

func functionsIn(t *testing.T, key string, before func()) {
	port := functionstest.Storage(t)
	address := world(t, port)
	before()
	natively := functions.All("http://127.0.0.1:" + port)
	stored := func(f functions.Function) []byte {
		if f.Parameters["output"] == "" {
			return nil
		}
		return functionstest.Get(t, port, f.Parameters["output"])
	}
	for n, f := range functions.All("http://" + address) {
		t.Run(f.Name, func(t *testing.T) {
			functionstest.Native(t, natively[n])
			native := stored(f)
			if native != nil {
				functionstest.Put(t, port, f.Parameters["output"], nil)
			}
			action := "actions/sample-" + f.Name
			var parameters []map[string]string
			for name, value := range f.Parameters {
				parameters = append(parameters, map[string]string{"key": name, "value": value})
			}
			if status := call(t, key, http.MethodPut, action+"?overwrite=true", map[string]any{
				"exec": map[string]string{"kind": f.Kind, "code": f.Code}, "parameters": parameters,
				"limits": map[string]int{"memory": f.MemoryMB, "timeout": f.TimeoutMs},
			}, nil); status != http.StatusOK {
				t.Fatalf("deploying it: %d", status)
			}
			var started struct {
				ID string `json:"activationId"`
			}
			call(t, key, http.MethodPost, action, map[string]any{}, &started)
			result, cold := await(t, key, started.ID)
			functionstest.Check(t, f, result, stored(f))
			functionstest.CheckSame(t, f, native, stored(f))
			t.Logf("%.0f ms from the request to the answer, of which its own: %v ms",
				cold.EndToEnd, result["ms"])
		})
	}
}

// A killable node is an agent and the containerd that it uses: its own, or one of the machine's.
type killable struct {
	*testing.T
	run        string
	flags      []string
	agent      *served
	containerd *exec.Cmd // nil: the agent's own
	config     string    // of the containerd
}

func (k *killable) startAgent() {
	k.Helper()
	k.agent = serveAgent(k.T, k.run, fastiov(k.T, k.flags...))
	k.agent.settled()
}

func (k *killable) startContainerd() {
	k.Helper()
	k.containerd = exec.Command("containerd", "--config", k.config, "--log-level", "error")
	if err := k.containerd.Start(); err != nil {
		k.Fatal(err)
	}
}

func (k *killable) killContainerd() {
	k.Helper()
	if k.containerd == nil { // the agent starts another
		k.signal("--config\x00" + k.config)
		return
	}
	_ = k.containerd.Process.Kill()
	_ = k.containerd.Wait()
}

// signal kills the process with these words in its command line.
func (k *killable) signal(words string) {
	k.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, _ := os.ReadFile(file)
		var pid int
		if _, err := fmt.Sscanf(file, "/proc/%d/", &pid); err == nil &&
			bytes.Contains(line, []byte(words)) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				k.Fatal(err)
			}
			return
		}
	}
	k.Fatalf("no process has %q", words)
}

const greet = `{"value":{"main":"main","binary":false,"name":"greet",` +
	`"code":"def main(args):\n    return {'greeting': 'hello'}"}}`

func (k *killable) request(id string) *api.StartRequest {
	return &api.StartRequest{Id: id, Image: "python:3", MemoryMib: 128, Init: []byte(greet),
		WaitMs: 60_000}
}

// allAnswer checks that the sandboxes are ready, with the processes that they had, and answer.
func (k *killable) allAnswer(before map[string]*api.Sandbox, when string) {
	k.Helper()
	now := k.agent.sandboxes()
	if len(now) != len(before) {
		k.Errorf("%s: there are %v of %v", when, now, before)
	}
	for id, s := range before {
		if now[id].GetPid() != s.Pid {
			k.Errorf("%s: %v was %v", when, now[id], s)
		}
		reply, err := k.agent.node.Run(k.Context(), &api.RunRequest{Id: id,
			Body: []byte(`{"value":{}}`), TimeoutMs: 10_000})
		if err != nil || !bytes.Contains(reply.Body, []byte("hello")) {
			k.Errorf("%s: %s answers %s, %v", when, id, reply.GetBody(), err)
		}
	}
}

// newStart starts and ends a sandbox, as soon as containerd is back.
func (k *killable) newStart(when string) {
	k.Helper()
	for late := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		_, err := k.agent.node.Start(k.Context(), k.request("another"))
		if err == nil {
			break
		}
		if time.Now().After(late) {
			k.Fatalf("%s: no sandbox starts: %v", when, err)
		}
	}
	if _, err := k.agent.node.Stop(k.Context(), &api.StopRequest{Id: "another"}); err != nil {
		k.Error(err)
	}
}

// Whatever is killed, the sandboxes go on, and the next agent adopts them. A shim that is killed
// takes its own sandbox along. Nothing is left in the end.
func TestKillsAroundContainers(t *testing.T) {
	for name, own := range map[string]bool{"its own containerd": true, "a containerd": false} {
		t.Run(name, func(t *testing.T) {
			inNetwork(t, func() { kills(t, own) })
		})
	}
}

func kills(t *testing.T, own bool) {
	dir := shortDir(t)
	k := &killable{T: t, run: filepath.Join(dir, "run")}
	k.flags = []string{"agent", "--sandbox", "containerd", "--metrics", "", "--run-dir", k.run,
		"--state-dir", filepath.Join(dir, "state")}
	k.config = filepath.Join(k.run, "containers/containerd/config.toml")
	if !own {
		k.config = filepath.Join(dir, "config.toml")
		socket := filepath.Join(dir, "containerd.sock")
		k.flags = append(k.flags, "--containerd", socket)
		if err := os.WriteFile(k.config, fmt.Appendf(nil, "version = 2\nroot = %q\nstate = %q\n"+
			"disabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n[grpc]\n  address = %q\n",
			filepath.Join(dir, "root"), filepath.Join(dir, "state-of-it"), socket),
			0o600); err != nil {
			t.Fatal(err)
		}
		k.startContainerd()
		t.Cleanup(k.killContainerd)
	}
	downAfter(t, k.run)
	k.startAgent()
	for n := range 4 {
		k.agent.start(k.request(fmt.Sprint("stays-", n)))
	}
	before := k.agent.sandboxes()
	k.allAnswer(before, "before")

	k.killContainerd()
	k.allAnswer(before, "containerd was killed")
	if !own {
		k.startContainerd()
	}
	k.newStart("containerd was killed")
	k.agent.kill()
	k.startAgent()
	k.allAnswer(before, "the agent was killed")
	k.newStart("the agent was killed")
	if !own { // an agent's own containerd ends with it
		k.agent.kill()
		k.killContainerd()
		k.startContainerd()
		k.startAgent()
		k.allAnswer(before, "both were killed")
		k.newStart("both were killed")
	}
	for id := range before {
		k.signal("-id\x00" + id + "\x00")
		delete(before, id)
		k.agent.until("the sandbox ends with its shim", func(now map[string]*api.Sandbox) bool {
			return now[id] == nil
		})
		k.allAnswer(before, "a shim was killed")
	}
	k.newStart("all shims were killed")
	if left := k.agent.status().Leftovers; len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	k.agent.kill()
	must(t, "down", "--run-dir", k.run)
	nothingOf(t, k.run)
}
