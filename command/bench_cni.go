package command

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/bench"
)

// inOwnNetwork is set for a bench that runs in a network namespace of its own.
const inOwnNetwork = "FASTIOV_BENCH_OWN_NETWORK"

// benchCNI needs root, and no VF: those that it leases are emulated.
func benchCNI() *cobra.Command {
	b := bench.CNI{Out: os.Stderr}
	var asJSON bool
	cmd := &cobra.Command{Use: "cni", Args: cobra.NoArgs,
		Short: "Count what the CNI plugin takes, beside the plugin ptp"}
	f := cmd.Flags()
	f.IntVar(&b.Rounds, "rounds", 100, "how many VERSIONs and ADDs of each")
	f.IntVar(&b.AtOnce, "n", 100, "how many ADDs begin together, 4 to 128")
	f.StringVar(&b.Peers, "peers", "/usr/lib/cni", "folder with the plugins ptp and host-local")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if b.Rounds < 1 || b.AtOnce < 4 || b.AtOnce > 128 {
			return errors.New("--rounds wants 1 or more, and --n 4 to 128")
		}
		for _, peer := range []string{"ptp", "host-local"} {
			if _, err := os.Stat(filepath.Join(b.Peers, peer)); err != nil {
				return fmt.Errorf("%w; install containernetworking-plugins, or say --peers", err)
			}
		}
		if os.Getenv(inOwnNetwork) == "" {
			return again(cmd)
		}
		// Mounted namespaces end with this process, also where it is killed.
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return os.NewSyscallError("mount", err)
		}
		result, err := b.Run(cmd.Context())
		if err != nil {
			return err
		}
		return show(cmd, result, asJSON)
	}
	return cmd
}

// again runs this command once more, in a network namespace of its own.
func again(cmd *cobra.Command) error {
	child := exec.CommandContext(cmd.Context(), "/proc/self/exe", os.Args[1:]...)
	child.Env = append(os.Environ(), inOwnNetwork+"=1")
	child.Stdout, child.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL,
	}
	if err := child.Run(); err != nil {
		return fmt.Errorf("in a network namespace of its own: %w; run as root", err)
	}
	return nil
}
