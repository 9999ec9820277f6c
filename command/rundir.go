package command

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

const nodeSocket = "node.sock" // in the run directory

func runDirFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("run-dir", "/run/fastiov", "where a running agent keeps its sockets, leases and sandboxes")
}

// The address at which an invoker serves is noted in the run directory, for the commands that call it.
func listenFile(runDir string) string { return filepath.Join(runDir, "listen") }

func noteListen[L net.Listener](runDir string, listeners ...L) error {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return err
	}
	var addresses []string
	for _, l := range listeners {
		addresses = append(addresses, l.Addr().String())
	}
	return os.WriteFile(listenFile(runDir), []byte(strings.Join(addresses, " ")), 0o644)
}

// readListen is where the API is served: without TLS, and where that is so, with it. The key depends on both.
func readListen(runDir string) ([]string, error) {
	b, err := os.ReadFile(listenFile(runDir))
	if err != nil {
		return nil, fmt.Errorf("no invoker runs here: %w; start one with `fastiov up`, or say where it is with --listen", err)
	}
	return strings.Fields(string(b)), nil
}

func lockRunDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("an agent runs on %s already; `fastiov status` shows it, `fastiov down` ends it", dir)
	}
	return func() { f.Close() }, nil
}

const invokerSocket = "invoker.sock" // in the run directory

const metricsSocket = "metrics.sock" // in the run directory: what an agent counts whose invoker is another process
