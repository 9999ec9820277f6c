package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/node-agent/api"
)

// selfSigned returns a certificate for 127.0.0.1 and some names that is its own CA, so each of its
// holders accepts the others.
func selfSigned(t *testing.T, names ...string) *api.Keys {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fastiov"},
		NotAfter:    time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: names,
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	keys := &api.Keys{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"),
		CA: filepath.Join(dir, "cert")}
	for path, block := range map[string]*pem.Block{keys.Cert: {Type: "CERTIFICATE", Bytes: cert},
		keys.Key: {Type: "EC PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return keys
}

// background starts a command that runs until the test ends, and returns when it is ready.
func background(t *testing.T, args ...string) {
	t.Helper()
	serving(t, fastiov(t, args...))
}

// serving starts a command that serves, and ends it with the test.
func serving(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	ready, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	var said bytes.Buffer
	if cmd.Stderr == nil {
		cmd.Stderr = &said
	}
	cmd.ExtraFiles, cmd.Env = []*os.File{theirs}, append(cmd.Env, readyFD+"=3")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	t.Cleanup(func() { end(t, cmd, &said) })
	if n, err := ready.Read(make([]byte, 1)); n == 0 {
		t.Fatalf("%v is not ready: %v", cmd.Args, err)
	}
}

func end(t *testing.T, cmd *exec.Cmd, said *bytes.Buffer) {
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %v\n%s", cmd.Args[1:], err, said)
	}
}

// An invoker spreads a burst over two agents that it reaches by mutual TLS.
func TestOneInvokerAndTwoNodes(t *testing.T) {
	keys := selfSigned(t)
	trust := []string{"--node-cert", keys.Cert, "--node-key", keys.Key, "--node-ca", keys.CA}
	dir := t.TempDir()
	var nodes []string
	for _, name := range []string{"a", "b"} {
		address := listenLater(t)
		background(t, append([]string{"agent", "--sandbox", "sim", "--run-dir",
			filepath.Join(dir, name), "--state-dir", dir,
			"--sim-start", "5s", // all calls arrive before one is done
			"--metrics", "", "--memory", "1024", "--node-listen", address}, trust...)...)
		nodes = append(nodes, "--node", address)
	}
	run := filepath.Join(dir, "invoker")
	background(t,
		append(append([]string{"invoker", "--run-dir", run, "--state-dir", dir, "--listen",
			"127.0.0.1:0", "--metrics", ""}, trust...), nodes...)...)
	address := readListen(t, run)
	key, err := openwhisk.LoadKey(address, keyFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	call := func(method, path, body string) int {
		request, err := http.NewRequest(method, "http://"+address+"/api/v1/namespaces/_/actions/"+
			path, bytes.NewReader([]byte(body)))
		if err != nil {
			t.Error(err)
			return 0
		}
		request.Header.Set("Content-Type", "application/json")
		request.SetBasicAuth(key.UUID, key.Secret)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Error(err)
			return 0
		}
		response.Body.Close()
		return response.StatusCode
	}
	if status := call("PUT", "hello", helloAction); status != 200 {
		t.Fatal(status)
	}
	var burst sync.WaitGroup
	for range 8 {
		burst.Go(func() {
			if status := call("POST", "hello?blocking=true", "{}"); status != 200 {
				t.Error(status)
			}
		})
	}
	burst.Wait()
	for _, name := range []string{"a", "b"} {
		var status api.StatusReply
		if err := json.Unmarshal([]byte(must(t, "status",
			"--json", "--run-dir", filepath.Join(dir, name))), &status); err != nil {
			t.Fatal(err)
		}
		if len(status.Sandboxes) != 4 {
			t.Errorf("node %s has %d of 8 sandboxes", name, len(status.Sandboxes))
		}
	}
}
