// Package scraper runs a Prometheus that scrapes a measured process and answers queries about it.
package scraper

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fastiov/fastiov/bench"
)

// Run runs a Prometheus with this configuration, which keeps its data below dir, and returns when
// it answers queries.
func Run(
	ctx context.Context, config, dir string, flags ...string,
) (url string, stop func(), err error) {
	address, err := bench.FreeAddress()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command("prometheus", append([]string{
		"--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", address, "--log.level", "warn",
	}, flags...)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	}
	for {
		if resp, err := http.Get("http://" + address + "/-/ready"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return "http://" + address, stop, nil
			}
		}
		select {
		case <-ended:
			return "", nil, fmt.Errorf("prometheus ended: %s", strings.TrimSpace(said.String()))
		case <-ctx.Done():
			stop()
			return "", nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// EverySecond runs a Prometheus that scrapes one target every second.
func EverySecond(ctx context.Context, target, dir string) (url string, stop func(), err error) {
	config := filepath.Join(dir, "prometheus.yml")
	text := "scrape_configs:\n- job_name: fastiov\n  scrape_interval: 1s\n" +
		"  static_configs:\n  - targets: [" + target + "]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return "", nil, err
	}
	return Run(ctx, config, dir)
}
