package e2e

import (
	"net/http"
	"testing"
)

// All processes are those that `up` starts.
func TestAllThatServesIsReady(t *testing.T) {
	a := upApart(t, "--listen", "127.0.0.1:0")
	resp, err := http.Get("http://" + a.metrics + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if resp.StatusCode != 200 {
		t.Errorf("/readyz answers %d", resp.StatusCode)
	}
}
