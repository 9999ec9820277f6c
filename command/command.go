// Package command is the command line of fastiov: a file for each verb (up.go, down.go, agent.go
// …), one for each bench (bench_ab.go …), and files for what several verbs share: a node
// (node.go) and its drivers (drivers.go), the inside of an invoker (front.go), their flags, the run
// directory (rundir.go), the processes that listen there (peer.go), how a process starts another
// and tells it that it is ready (detach.go, apart.go, ready.go).
package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/command/settings"
)

// version is stamped by the build.
var version = "unknown"

// rootCmd is the command line as a whole.
func rootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:           "fastiov",
		Short:         "Cold-start functions in microVMs with passed-through SR-IOV virtual functions",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,

		PersistentPreRunE: configure,
	}
	root.AddCommand(
		upCmd(), downCmd(), agentCmd(), invokerCmd(), configCmd(),
		statusCmd(), drainCmd(), reportCmd(), logsCmd(), connectCmd(), publishCmd(), vfCmd(),
		sconCmd(), cniCmd(),
		burstCmd(), benchCmd(), userCmd(), kubeconfigCmd(), storageCmd(), k6Cmd(),
		doctorCmd(), testbedCmd(), imageCmd(),
		tracesCmd(),
		bareVMMCmd(), vfHolderCmd(), plainHandlerCmd(),
	)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; `%s --help` lists the flags", err, cmd.CommandPath())
	})
	sayUse(root)
	return root
}

// sayUse has a command that is given too few or too many arguments say how it is used.
func sayUse(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if err != nil {
				err = fmt.Errorf("%w; it is used as `%s`", err, cmd.UseLine())
			}
			return err
		}
	}
	for _, sub := range cmd.Commands() {
		sayUse(sub)
	}
}

// Main runs the command that the arguments of this process name, and exits with 1 where it fails.
func Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	told := make(chan struct{})
	untold := context.AfterFunc(ctx, func() {
		defer close(told)
		tellManager(daemon.SdNotifyStopping, "it ends")
	})
	err := rootCmd().ExecuteContext(ctx)
	stop() // another signal ends it at once
	if !untold() {
		select { // a command may end sooner than it is told
		case <-told:
		case <-time.After(time.Second): // by a manager that does not read
		}
	}
	if err != nil {
		if errors.Is(err, syscall.ENOSPC) && !strings.Contains(err.Error(), "free some") {
			err = fmt.Errorf("%w; free some there", err)
		}
		if errors.Is(err, os.ErrPermission) && !strings.Contains(err.Error(), "sudo") {
			err = fmt.Errorf("%w; use sudo, or files and directories that are yours", err)
		}
		fmt.Fprintln(os.Stderr, "fastiov:", settings.Masked(err.Error()))
		os.Exit(1)
	}
}
