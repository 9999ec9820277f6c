package command

import (
	"log/slog"
	"net/http"
	"testing"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/node-agent/api/metrics"
)

// TestAProcessIsReadyWhenItServes: it is healthy before that.
func TestAProcessIsReadyWhenItServes(t *testing.T) {
	was := serves.Load()
	defer serves.Store(was)
	address, err := bench.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	page := metrics.Page(newRegistry(asAgent))
	stop, err := serveMetrics(address, nobodyElse, page, nil, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	defer http.DefaultClient.CloseIdleConnections()
	for _, now := range []struct {
		serving         bool
		healthz, readyz int
	}{{false, 200, 503}, {true, 200, 200}} {
		serves.Store(now.serving)
		for path, want := range map[string]int{"/healthz": now.healthz, "/readyz": now.readyz} {
			resp, err := http.Get("http://" + address + path)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("serving %v: %s answers %d, want %d", now.serving, path,
					resp.StatusCode, want)
			}
		}
	}
}
