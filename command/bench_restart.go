package command

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/command/settings"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// benchRestart runs an agent of its own, which takes the VFs of one device.
func benchRestart() *cobra.Command {
	b := bench.Restart{Out: os.Stderr}
	var driver, pf string
	var memory int
	var asJSON bool
	cmd := &cobra.Command{
		Use: "restart", Short: "Time an agent that is killed beside N sandboxes and started again",
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.IntVar(&b.N, "n", 7, "how many sandboxes")
	f.IntVar(&b.Stopped, "stopped", 0, "of them, how many VMMs are stopped by a signal meanwhile")
	f.StringVar(&driver, "sandbox", "bare", "what they are: bare or sim")
	f.StringVar(&pf, "pf", "nvme", "whose VFs: a device's address, driver or netdev")
	f.IntVar(&memory, "memory", 0, "MiB to give out to sandboxes (default: what is free)")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if b.N < 1 || b.Stopped < 0 || b.Stopped > b.N {
			return errors.New("--n wants 1 or more, --stopped no more than that")
		}
		d, err := driverNamed(driver)
		if err != nil || d.images || b.Stopped > 0 && !d.root {
			return errors.New("--sandbox is bare or sim, and sim has no VMM to stop")
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		runDir, err := os.MkdirTemp("", "fastiov-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(runDir)
		b.Socket = filepath.Join(runDir, nodeSocket)
		b.Agent = []string{self, "agent", "--config", settings.NoFile,
			"--run-dir", runDir, "--state-dir", runDir, "--metrics=",
			"--sandbox", driver, "--sim-start=0", "--boot-deadline=5m",
			fmt.Sprint("--memory=", memory), "--log-level=error"}
		if d.root {
			// The benchmark has its figures, so an error here does not matter to it.
			defer vf.Undo(vf.Config{Run: runDir})
			b.Agent = append(b.Agent, "--pf", pf, "--limits", limitsBestEffort,
				"--vfs", fmt.Sprint(b.N), "--subnet", "10.200.0.0/16",
				"--first-address", "10.200.1.0", "--gateway", "10.200.0.1", "--dns", "10.200.0.1")
		}
		result, err := b.Run(cmd.Context())
		if err != nil {
			return err
		}
		return show(cmd, result, asJSON)
	}
	return cmd
}
