//go:build node

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/fastiov/fastiov/functions"
	"github.com/fastiov/fastiov/functions/functionstest"
	"github.com/fastiov/fastiov/node-agent/beside"
	"github.com/fastiov/fastiov/testbed"
	"github.com/fastiov/fastiov/testbed/wire"
)

// These tests use the node that `fastiov up` has started in the testbed.
func upTestbed(t *testing.T) (host *testbed.Host, key string) {
	t.Helper()
	host, err := testbed.Open(t.Context(), "default")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(host.Close)
	var out bytes.Buffer
	if code, err := host.Run(t.Context(),
		"cat /var/lib/fastiov/key", nil, &out, os.Stderr); err != nil || code != 0 {
		t.Fatalf("no key: exit code %d, %v", code, err)
	}
	return host, strings.TrimSpace(out.String())
}

// Who ends a node by its run directory does not end the testbed, in which another one runs.
func TestTheTestbedIsNoNodeOfAnotherRunDirectory(t *testing.T) {
	host, _ := upTestbed(t)
	said, err := fastiov(t, "down", "--run-dir", t.TempDir()).CombinedOutput()
	if err != nil || !strings.Contains(string(said), "the testbed stays up") {
		t.Errorf("%v: %s", err, said)
	}
	if code, err := host.Run(t.Context(), "true", nil, nil, os.Stderr); err != nil || code != 0 {
		t.Errorf("the testbed has ended: exit code %d, %v", code, err)
	}
}

// A testbed that is booted ends again where it cannot be given its programs.
func TestATestbedWithoutItsProgramsEnds(t *testing.T) {
	const name = "without-programs"
	up := fastiov(t, "testbed", "up", "--name", name, "--memory", "2048")
	up.Path = filepath.Join(t.TempDir(), "fastiov")
	self, err := os.ReadFile(up.Args[0])
	if err == nil {
		err = os.WriteFile(up.Path, self, 0o755)
	}
	if err == nil { // where its launcher belongs
		err = os.Mkdir(filepath.Join(filepath.Dir(up.Path), beside.Launcher.Name), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	if said, err := up.CombinedOutput(); err == nil ||
		!strings.Contains(string(said), "is a directory") {
		t.Errorf("%v: %s", err, said)
	}
	if state, err := testbed.Look(name); err == nil {
		t.Errorf("it is left: %+v", state)
		_ = testbed.Down(t.Context(), name, os.Stderr)
	}
}

const fetch = `
def main(args):
    import socket
    with socket.create_connection((args["host"], args["port"]), 60) as s:
        s.sendall(b"which way?")
        return {"answer": s.recv(100).decode(), "from": s.getsockname()[0]}
`

// A function reaches a server outside the node, and on the wire its packets have the MAC of the VF
// in its record.
func TestAFunctionTalksThroughItsVF(t *testing.T) {
	host, key := upTestbed(t)
	port := answering(t, "through the VF")
	call(t, key, http.MethodPut, "actions/fetch?overwrite=true",
		map[string]any{"exec": map[string]string{"kind": "python:3", "code": fetch}}, nil)
	t.Cleanup(func() { call(t, key, http.MethodDelete, "actions/fetch", nil, nil) })
	var started struct {
		ID string `json:"activationId"`
	}
	call(t, key, http.MethodPost, "actions/fetch", map[string]any{"host": "10.0.2.2", "port": port},
		&started)
	result, cold := await(t, key, started.ID)

	if result["answer"] != "through the VF" || result["from"] != cold.Address {
		t.Errorf("the function got %v; its VF's address is %s", result, cold.Address)
	}
	if macs := sources(t, host.Wire(0), port); len(macs) != 1 || !macs[cold.MAC] {
		t.Errorf("the wire saw %v talk to port %d, the VF's MAC is %s", macs, port, cold.MAC)
	}
}

// Every sample function starts cold, fetches its input through its VF, computes, and stores through
// its VF what the same code stores on this machine.
func TestTheFunctionsThroughTheirVFs(t *testing.T) {
	if testing.Short() {
		t.Skip("runs every sample function, cold")
	}
	host, key := upTestbed(t)
	port := functionstest.Storage(t)
	stored := func(f functions.Function) []byte {
		if f.Parameters["output"] == "" {
			return nil
		}
		return functionstest.Get(t, port, f.Parameters["output"])
	}
	natively := functions.All("http://127.0.0.1:" + port)
	macs := map[string]bool{}
	for n, f := range functions.All("http://10.0.2.2:" + port) {
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
			status := call(t, key, http.MethodPut, action+"?overwrite=true", map[string]any{
				"exec": map[string]string{"kind": f.Kind, "code": f.Code}, "parameters": parameters,
				"limits": map[string]int{"memory": f.MemoryMB, "timeout": f.TimeoutMs},
			}, nil)
			if status != http.StatusOK {
				t.Fatalf("deploying it: %d", status)
			}
			defer call(t, key, http.MethodDelete, action, nil, nil)
			var started struct {
				ID string `json:"activationId"`
			}
			call(t, key, http.MethodPost, action, map[string]any{}, &started)
			result, cold := await(t, key, started.ID)
			functionstest.Check(t, f, result, stored(f))
			functionstest.CheckSame(t, f, native, stored(f))
			if f.Parameters["storage"] != "" {
				macs[cold.MAC] = true
			}
			t.Logf("%.1f s from the request to the answer, of which its own: %v ms",
				cold.EndToEnd/1000, result["ms"])
		})
	}
	for mac := range sources(t, host.Wire(0), portNumber(t, port)) {
		if !macs[mac] {
			t.Errorf("%s spoke to the storage server, which is no VF of these functions: %v",
				mac, macs)
		}
		delete(macs, mac)
	}
	if len(macs) > 0 {
		t.Errorf("the wire saw nothing of %v", macs)
	}
}

// talker answers each GET with what a server says that it asks over its NIC.
const talker = `
import http.server, socket, sys
class Talker(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with socket.create_connection((sys.argv[1], int(sys.argv[2])), 60) as s:
            s.sendall(b"which way?")
            answer = s.recv(100)
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
http.server.ThreadingHTTPServer(("", 8080), Talker).serve_forever()
`

// Seven Knative services start cold at once, each in a microVM with a VF of its own, by whose MAC
// its packets are on the wire.
func TestServicesThroughTheirVFs(t *testing.T) {
	if testing.Short() {
		t.Skip("starts seven services, cold")
	}
	const many = 7
	host, key := upTestbed(t)
	port := answering(t, "through the VF")
	services := kubernetes{t, "http://127.0.0.1:3233", key}
	name := func(n int) string { return fmt.Sprint("talker-", n) }
	for n := range many {
		body, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"name": name(n)},
			"spec": map[string]any{"template": map[string]any{
				"metadata": map[string]any{"annotations": map[string]string{
					"autoscaling.knative.dev/initial-scale": "0"}},
				"spec": map[string]any{"timeoutSeconds": 600, "containers": []any{map[string]any{
					"image": "python:3", "command": []string{"python3"},
					"args": []string{"-c", talker, "10.0.2.2", fmt.Sprint(port)}}}}}}})
		if err != nil {
			t.Fatal(err)
		}
		services.ask(http.MethodPost, servicesOf, string(body))
		t.Cleanup(func() { services.ask(http.MethodDelete, servicesOf+"/"+name(n), "") })
		services.await(name(n), `"type":"Ready","status":"True"`)
	}
	var calls sync.WaitGroup
	begin := time.Now()
	for n := range many {
		calls.Go(func() {
			said, err := services.get(name(n))
			if t.Logf("%v: %s: %q", time.Since(begin), name(n), said); err != nil ||
				said != "through the VF" {
				t.Errorf("%s answers %q, %v", name(n), said, err)
			}
		})
	}
	calls.Wait()
	theirs := map[string]bool{}
	for n := range many {
		var records []struct {
			ID string `json:"activationId"`
		}
		call(t, key, http.MethodGet, fmt.Sprintf("activations?limit=1&name=%s&since=%d", name(n),
			begin.UnixMilli()), nil, &records)
		if len(records) == 0 {
			t.Fatalf("the start of %s has no record", name(n))
		}
		_, cold := await(t, key, records[0].ID)
		if theirs[cold.MAC] = true; cold.Coverage < 0.95 {
			t.Errorf("the stages of %s tell %.3f of its start", name(n), cold.Coverage)
		}
	}
	if seen := sources(t, host.Wire(0), port); len(theirs) != many || !maps.Equal(seen, theirs) {
		t.Errorf("the wire saw %v talk to port %d; the services' VFs have %v", seen, port, theirs)
	}
}

// answering gives all who ask an answer, and returns its port, which functions reach at 10.0.2.2.
func answering(t *testing.T, answer string) (port int) {
	t.Helper()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			question := make([]byte, 100)
			if _, err := c.Read(question); err == nil {
				_, _ = c.Write([]byte(answer))
			}
			c.Close()
		}
	}()
	return server.Addr().(*net.TCPAddr).Port
}

func portNumber(t *testing.T, port string) int {
	t.Helper()
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// sources lists the MACs that sent to a TCP port according to the wire's recording.
func sources(t *testing.T, recording string, port int) map[string]bool {
	t.Helper()
	macs := map[string]bool{}
	for frame, err := range wire.Frames(recording) {
		if err != nil {
			t.Fatal(err)
		}
		p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
		eth, isEth := p.LinkLayer().(*layers.Ethernet)
		tcp, isTCP := p.TransportLayer().(*layers.TCP)
		if isEth && isTCP && int(tcp.DstPort) == port {
			macs[eth.SrcMAC.String()] = true
		}
	}
	return macs
}
