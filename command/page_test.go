//go:build page

package command

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/live"
	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/node-agent/agent"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/sandbox/sim"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/node-agent/vf/vftest"
)

// The VFs of the emulated host: one for each start of a burst.
const pageVFs = 200

// TestLivePage looks at the page of a real invoker over a real agent, with simulated sandboxes and the VF pool of an emulated host, in a
// headless Chromium. `make test ONLY=full/page` says where that and the script's libraries are. FASTIOV_PAGE_OUT names a folder that keeps what it measured
// and the pictures.
func TestLivePage(t *testing.T) {
	folder := os.Getenv("FASTIOV_PAGE_JS")
	if folder == "" {
		t.Fatal("needs Chromium and its libraries: run make test ONLY=full/page")
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		missing(t, "no chromium on PATH; Debian's package is chromium")
	}
	out := os.Getenv("FASTIOV_PAGE_OUT")
	if out == "" {
		out = t.TempDir()
	}
	for name, key := range map[string]openwhisk.Key{"well-known": {}, "secret": {Key: access.NewKey()}} {
		t.Run(name, func(t *testing.T) {
			url, secret := servePage(t, key)
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			defer cancel()
			script := exec.CommandContext(ctx, "node", "page.js")
			script.Dir = folder
			script.Env = append(os.Environ(), "URL="+url, "KEY="+secret, "VFS=200", "CHROMIUM="+chromium, "SHOTS="+out)
			var figures, complaint bytes.Buffer
			script.Stdout, script.Stderr = &figures, &complaint
			if err := script.Run(); err != nil {
				t.Fatalf("%v\n%s", err, complaint.Bytes())
			}
			if !json.Valid(figures.Bytes()) {
				t.Fatalf("no figures: %q", figures.Bytes())
			}
			t.Logf("%s", figures.Bytes())
			if err := os.WriteFile(filepath.Join(out, "page.json"), figures.Bytes(), 0o644); err != nil {
				t.Error(err)
			}
		})
	}
}

// servePage serves an invoker with its page until the test ends; with a key of its own it is one that the page does not have.
func servePage(t *testing.T, key openwhisk.Key) (url, secret string) {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	log := slog.New(slog.DiscardHandler)
	var flags invokerFlags
	flags.register(&cobra.Command{})
	flags.listen = "127.0.0.1:0"
	front, err := flags.open(ctx, dir, dir, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(front.close)
	if key != (openwhisk.Key{}) {
		front.cfg.Key, secret = key, key.String()
	}
	registry := prometheus.NewRegistry()
	node := api.Local(agentWithVFs(t, dir, registry))
	front.watched = []live.Named{{Name: "local", Node: node}}
	nodes, err := flags.pool(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- front.serve(ctx, nodes, node, registry) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return "http://" + front.plain.Addr().String(), secret
}

// agentWithVFs is an agent over sim whose starts each lease a VF of an emulated host.
func agentWithVFs(t *testing.T, dir string, registry *prometheus.Registry) *agent.Agent {
	t.Helper()
	host := vftest.Make(t)
	host.ResetTime = 200 * time.Millisecond
	for _, pf := range []vftest.PF{
		{BDF: "0000:01:00.0", Driver: "igb", VFDriver: "igbvf", Netdev: "eth1", VFs: pageVFs / 2},
		{BDF: "0000:02:00.0", Driver: "ixgbe", VFDriver: "ixgbevf", Netdev: "eth2", VFs: pageVFs / 2},
	} {
		if err := host.AddPF(pf); err != nil {
			t.Fatal(err)
		}
	}
	cfg := host.Config()
	cfg.PFs = []string{"igb", "ixgbe"}
	pool, err := vf.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	starter := &startup.Starter{
		RunDir: dir, Driver: sim.New(sim.Config{Stages: sim.Table1(6 * time.Second)}), Images: rootsOf{}, Admission: startup.NewAdmission(1<<20, pool), Owners: pool,
		Network: startup.Network{Subnet: netip.MustParsePrefix("10.0.0.0/16"), First: netip.MustParseAddr("10.0.1.0")},
		Reports: &startup.Reports{Dir: dir, Keep: 1}, Log: slog.New(slog.DiscardHandler),
		Deadlines: startup.Deadlines{Image: time.Minute, Wire: time.Minute, Boot: time.Minute, Init: time.Minute},
	}
	served, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(served)
		for {
			select {
			case <-pool.Idle():
				starter.Admission.Serve()
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-served })
	return agent.New(agent.Config{Version: "test", Driver: "sim", Starter: starter, VFs: pool, Metrics: agent.NewMetrics(registry), Log: starter.Log})
}
