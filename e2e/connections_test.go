package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk"
)

// One address opens more idle connections than the invoker may have files. Calls from another
// address are answered, and the store, the node and the commands have the files that they need.
func TestIdleConnectionsKeepNobodyFromCalling(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an invoker")
	}
	const files = 200
	dir := t.TempDir()
	run, address := filepath.Join(dir, "run"), listenLater(t)
	cmd := fastiov(t, "up", "--foreground", "--sandbox", "sim", "--sim-start", "1ms",
		"--listen", address, "--metrics", "", "--run-dir", run, "--state-dir", dir)
	limit := fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, files)
	cmd.Args = append([]string{"sh", "-c", limit, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	serving(t, cmd)
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	client := &http.Client{Transport: &http.Transport{DialContext: from.DialContext,
		DisableKeepAlives: true}} // each call needs a connection of its own
	key := guest(t)
	for _, call := range [][2]string{{"PUT", ""}, {"POST", "?blocking=true"}} {
		const action = `{"exec":{"kind":"python:3","code":"def main(args): return args"}}`
		for range files + 50 {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
		}
		// after ten seconds the invoker drops them, and whoever they kept waiting is answered
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, call[0],
			"http://"+address+"/api/v1/namespaces/_/actions/hello"+call[1],
			strings.NewReader(action))
		if err != nil {
			t.Fatal(err)
		}
		r.SetBasicAuth(key.UUID, key.Secret)
		resp, err := client.Do(r)
		if err != nil {
			t.Fatalf("from another address: %v", err)
		}
		content, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 200 {
			t.Errorf("%s: HTTP %d %s %v", call[0], resp.StatusCode, content, err)
		}
	}
	must(t, "user", "list", "--run-dir", run, "--state-dir", dir)
	must(t, "status", "--run-dir", run)
}

// guest returns the key of an invoker on loopback.
func guest(t *testing.T) access.Key {
	t.Helper()
	key, err := openwhisk.LoadKey("127.0.0.1:0", "")
	if err != nil {
		t.Fatal(err)
	}
	return key.Key
}
