package oci

import (
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// TestThroughAProxy pulls from a registry that only a proxy reaches. The environment says which
// proxy, and is read once by a process, so another one pulls.
func TestThroughAProxy(t *testing.T) {
	const registry, variable = "registry.example.com", "FASTIOV_TEST_HOSTS"
	if dir := os.Getenv(variable); dir != "" {
		if err := fetched(t, withHosts(t, dir, registry), registry+"/a:1"); err != nil {
			t.Fatal(err)
		}
		return
	}
	stock, _ := stocked(t)
	server := httptest.NewTLSServer(stock) // whose certificate is for *.example.com
	defer server.Close()
	var connected atomic.Int64
	proxyURL, _ := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Host != registry+":443" {
			http.Error(w, "only "+registry, http.StatusForbidden)
			return
		}
		connected.Add(1)
		to, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		defer to.Close()
		w.WriteHeader(http.StatusOK)
		from, read, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer from.Close()
		var both sync.WaitGroup
		// The server may have read the first byte of what follows the answer.
		both.Go(func() { _, _ = io.Copy(to, read); to.(*net.TCPConn).CloseWrite() })
		both.Go(func() { _, _ = io.Copy(from, to) })
		both.Wait()
	}))
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: server.Certificate().Raw}), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestThroughAProxy$")
	cmd.Env = append(os.Environ(), "HTTPS_PROXY="+proxyURL, "NO_PROXY=",
		variable+"="+hostsDir(t, registry, fmt.Sprintf("ca = %q\n", ca)))
	if out, err := cmd.CombinedOutput(); err != nil || connected.Load() == 0 {
		t.Errorf("%v, %d connections through the proxy: %s", err, connected.Load(), out)
	}
}
