package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
)

// TestASandboxIsReached reads what a sandbox writes and speaks to it, by the commands.
func TestASandboxIsReached(t *testing.T) {
	run := t.TempDir()
	agent := fastiov(t, "agent", "--sandbox", "sim", "--sim-start", "0", "--run-dir", run,
		"--state-dir", t.TempDir(), "--metrics", "")
	start(t, agent)
	waitForSocket(t, run)
	node, hangUp, err := api.Dial(filepath.Join(run, "node.sock"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer hangUp()
	const id, body = "by-hand", `{"value":{"said":"by hand"}}`
	if _, err := node.Start(t.Context(), &api.StartRequest{Id: id, MemoryMib: 128}); err != nil {
		t.Fatal(err)
	}
	if _, err := node.Run(t.Context(), &api.RunRequest{Id: id, Body: []byte(body)}); err != nil {
		t.Fatal(err)
	}
	if logs := must(t, "logs", id, "--run-dir", run); !strings.Contains(logs, "sim: answered 200") {
		t.Errorf("its logs: %q", logs)
	}

	call := fastiov(t, "connect", id, "8080", "--run-dir", run)
	call.Stdin = strings.NewReader(fmt.Sprintf(
		"POST /run HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	answer, err := call.Output()
	if err != nil || !strings.HasSuffix(string(answer), `{"said":"by hand"}`) {
		t.Errorf("it answers %q, %v", answer, err)
	}
	refused, err := fastiov(t, "connect", id, "9000", "--run-dir", run).CombinedOutput()
	if err == nil || !strings.Contains(string(refused), "nothing listens on port 9000") {
		t.Errorf("a port where nobody listens: %q, %v", refused, err)
	}

	address := listenLater(t)
	forward := fastiov(t, "connect", id, "8080", "--listen", address, "--run-dir", run)
	if err := forward.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = forward.Process.Kill(); _ = forward.Wait() })
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			break
		}
		if time.Now().After(until) {
			t.Fatal(err)
		}
	}
	for range 3 {
		response, err := http.Post("http://"+address+"/run", "application/json",
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || string(answer) != `{"said":"by hand"}` {
			t.Errorf("through %s it answers %q, %v", address, answer, err)
		}
	}

	follow := fastiov(t, "logs", id, "-f", "--run-dir", run)
	out, err := follow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if _, err := node.Stop(t.Context(), &api.StopRequest{Id: id}); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, out)
	if err := follow.Wait(); err != nil {
		t.Errorf("who follows a sandbox that ends: %v", err)
	}
}
