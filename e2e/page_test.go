//go:build page

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/node-agent/agent"
	netvf "github.com/fastiov/fastiov/node-agent/netpath/vf"
	"github.com/fastiov/fastiov/node-agent/sandbox/sim"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/node-agent/vf/vftest"
)

// The VFs of the emulated host: one for each start of a burst.
const pageVFs = 200

// TestLivePage looks at the page of a real invoker over a real agent, with simulated sandboxes and
// the VF pool of an emulated host, in a headless Chromium. `make test ONLY=full/page` shows where
// the browser and the script's libraries come from. FASTIOV_TEST_PAGE_OUT names a folder that keeps
// the measurements and the pictures.
func TestLivePage(t *testing.T) {
	folder := os.Getenv("FASTIOV_TEST_PAGE_JS")
	if folder == "" {
		t.Fatal("needs Chromium and its libraries: run make test ONLY=full/page")
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		missing(t, "no chromium on PATH; Debian's package is chromium")
	}
	out := os.Getenv("FASTIOV_TEST_PAGE_OUT")
	if out == "" {
		out = t.TempDir()
	}
	for name, listen := range map[string]string{"well-known": "127.0.0.1:0",
		"secret": "0.0.0.0:0"} {
		t.Run(name, func(t *testing.T) {
			url, secret := servePage(t, listen)
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			defer cancel()
			script := exec.CommandContext(ctx, "node", "page.js")
			script.Dir = folder
			script.Env = append(os.Environ(), "URL="+url, "KEY="+secret, "VFS=200", "CHROMIUM="+
				chromium, "SHOTS="+out)
			var figures, complaint bytes.Buffer
			script.Stdout, script.Stderr = &figures, &complaint
			if err := script.Run(); err != nil {
				t.Fatalf("%v\n%s", err, complaint.Bytes())
			}
			if !json.Valid(figures.Bytes()) {
				t.Fatalf("no figures: %q", figures.Bytes())
			}
			t.Logf("%s", figures.Bytes())
			if err := os.WriteFile(filepath.Join(out, "page.json"),
				figures.Bytes(), 0o644); err != nil {
				t.Error(err)
			}
		})
	}
}

// servePage serves an invoker with its page until the test ends. Except on loopback, it makes a
// key, which the page does not know.
func servePage(t *testing.T, listen string) (url, secret string) {
	t.Helper()
	dir := t.TempDir()
	run, socket := filepath.Join(dir, "run"), filepath.Join(dir, "vfs.sock")
	serveNode(t, socket, agentWithVFs(t, dir))
	background(t, "invoker", "--node", socket, "--listen", listen, "--run-dir", run,
		"--state-dir", dir, "--metrics", "")
	address := readListen(t, run)
	key, err := openwhisk.LoadKey(address, keyFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	if key.Open() == "" {
		secret = key.String()
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return "http://127.0.0.1:" + port, secret
}

// agentWithVFs returns an agent over sim whose starts each lease a VF of an emulated host.
func agentWithVFs(t *testing.T, dir string) *agent.Agent {
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
		RunDir: dir, Images: noImages{},
		Driver:    sim.New(sim.Config{Stages: sim.Table1(6 * time.Second)}),
		Admission: startup.NewAdmission(1<<20, netvf.Path{Pool: pool}),
		Network: startup.Network{
			Subnet: netip.MustParsePrefix("10.0.0.0/16"), First: netip.MustParseAddr("10.0.1.0"),
		},
		Reports: &startup.Reports{Dir: dir, Keep: 1}, Log: slog.New(slog.DiscardHandler),
		Deadlines: startup.Deadlines{Image: time.Minute, Wire: time.Minute, Boot: time.Minute,
			Init: time.Minute},
	}
	a := agent.New(agent.Config{
		Version: "test", Driver: "sim", Starter: starter, VFs: pool,
		Metrics: agent.NewMetrics(prometheus.NewRegistry()), Log: starter.Log,
	})
	go a.Follow(t.Context())
	return a
}
