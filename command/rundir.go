package command

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/command/settings"
)

const nodeSocket = "node.sock" // in the run directory

// Where a node and its invoker keep what they need, unless they are told otherwise.
const (
	usualRunDir   = "/run/fastiov"
	usualStateDir = "/var/lib/fastiov"
)

// isUsual reports whether a run directory is the one of a testbed's node, too.
func isUsual(runDir string) bool { return filepath.Clean(runDir) == usualRunDir }

func runDirFlag(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "run-dir", usualRunDir,
		"sockets, leases and sandboxes of an agent; on a tmpfs")
}

// ofNode gives a command that calls a node the flag that says where one runs.
func ofNode(cmd *cobra.Command) *string {
	dir := new(string)
	settings.Add(cmd, nodeSection, func(f *pflag.FlagSet) { runDirFlag(f, dir) })
	return dir
}

// The address at which an invoker serves is noted in the run directory, for the commands that call
// it.
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

// readListen returns the address of the API without TLS and, if there is one, that with TLS. The
// key depends on both.
func readListen(runDir string) ([]string, error) {
	b, err := os.ReadFile(listenFile(runDir))
	if err != nil {
		return nil, fmt.Errorf(
			"no invoker runs here: %w; start one with `fastiov up`, or say where it is with --listen",
			err)
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
		return nil, fmt.Errorf(
			"an agent runs on %s already; `fastiov status` shows it, `fastiov down` ends it", dir)
	}
	return func() { f.Close() }, nil
}

const invokerSocket = "invoker.sock" // in the run directory

// In the run directory: the metrics of an agent whose invoker is another process.
const metricsSocket = "metrics.sock"
