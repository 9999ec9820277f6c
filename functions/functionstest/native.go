package functionstest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/functions"
	"github.com/fastiov/fastiov/functions/runtimes"
)

// Native runs a function on this machine, behind the same proxy as in a sandbox, and returns its
// result.
func Native(t *testing.T, f functions.Function) map[string]any {
	t.Helper()
	result := run(t, f)
	if result["error"] != nil {
		t.Fatalf("%s: %v", f.Name, result)
	}
	return result
}

// NativeError runs a function that must fail, and returns the reason in its error.
func NativeError(t *testing.T, f functions.Function) string {
	t.Helper()
	result := run(t, f)
	why, err := json.Marshal(result["error"])
	if result["error"] == nil || err != nil {
		t.Fatalf("%s: %v, %v", f.Name, result, err)
	}
	return string(why)
}

func run(t *testing.T, f functions.Function) map[string]any {
	t.Helper()
	command, proxy := interpreter(t, f.Kind), runtimes.Python3
	if strings.HasPrefix(f.Kind, "nodejs") {
		proxy = runtimes.NodeJS
	}
	file := filepath.Join(t.TempDir(), "proxy")
	if err := os.WriteFile(file, proxy, 0o600); err != nil {
		t.Fatal(err)
	}
	port := FreePort(t)
	base := Start(t, port, append(command, file)...)
	post(t, base+"/init",
		map[string]any{"value": map[string]any{"name": f.Name, "main": "main", "code": f.Code}})
	status, result := post(t, base+"/run", map[string]any{"value": f.Parameters})
	if status != http.StatusOK {
		t.Fatalf("%s: %d %v", f.Name, status, result)
	}
	return result
}

// Start runs a server on a loopback port until the test ends, and returns its URL once it accepts
// connections.
func Start(t *testing.T, port string, command ...string) (base string) {
	t.Helper()
	server := exec.Command(command[0], command[1:]...)
	// no proxy variables: no other network is used
	server.Env = []string{"PORT=" + port, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir()}
	var said bytes.Buffer
	server.Stdout, server.Stderr = &said, &said
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = server.Wait(); close(ended) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		_ = server.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("%s said: %s", command[len(command)-1], said.Bytes())
		}
	})
	for {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			conn.Close()
			return "http://127.0.0.1:" + port
		}
		select {
		case <-ended:
			t.Fatalf("%v ended: %s", command, said.Bytes())
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// FreePort returns a loopback port that is free now.
func FreePort(t *testing.T) string {
	t.Helper()
	for range 100 { // below the ports that the kernel chooses by default
		port := strconv.Itoa(10_000 + rand.IntN(20_000))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

func post(t *testing.T, url string, in any) (status int, out map[string]any) {
	t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(answer, &out)
	}
	if err != nil {
		t.Fatalf("%s: %d %s: %v", url, resp.StatusCode, answer, err)
	}
	return resp.StatusCode, out
}

// interpreter returns the command that runs a kind of function on this machine. Without it the test
// is skipped, or fails in CI.
func interpreter(t *testing.T, kind string) []string {
	t.Helper()
	if strings.HasPrefix(kind, "nodejs") {
		node, err := exec.LookPath("node")
		if err != nil {
			missing(t, "node 18 or newer", "nodejs")
		}
		return []string{node}
	}
	return []string{Python(t, strings.HasSuffix(kind, "-ai")), "-I", "-u"}
}

// Python returns a Python interpreter; with libraries, one that has the libraries of the kind
// python:3-ai.
func Python(t *testing.T, libraries bool) string {
	t.Helper()
	program := "import sys; assert sys.version_info >= (3, 10)"
	if libraries {
		program += "; import PIL.Image, numpy"
	}
	for _, name := range []string{"/usr/bin/python3", "python3"} {
		if path, err := exec.LookPath(name); err == nil &&
			exec.Command(path, "-I", "-c", program).Run() == nil {
			return path
		}
	}
	missing(t, "python 3.10 or newer with PIL and numpy", "python3 python3-pil python3-numpy")
	return ""
}

func missing(t *testing.T, what, packages string) {
	t.Helper()
	if os.Getenv("FASTIOV_CI") != "" {
		t.Fatal(errors.New(what + " is missing: install " + packages))
	}
	t.Skip("needs " + what + ": install " + packages)
}
