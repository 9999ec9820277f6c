package command

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench/controlplane"
)

const plainHandler = "plain-handler"

// benchControlPlane starts its own servers, on loopback and in directories of their own.
func benchControlPlane() *cobra.Command {
	b := controlplane.Bench{Plain: plainHandler, Out: os.Stderr}
	var asJSON bool
	cmd := &cobra.Command{Use: "control-plane",
		Short: "What a call costs where a sandbox costs nothing: warm, cold, beside 10,000 sandboxes, in memory",
		Args:  cobra.NoArgs}
	f := cmd.Flags()
	f.IntVar(&b.Rounds, "rounds", 7, "how many times each comparison")
	f.DurationVar(&b.Slice, "slice", 2*time.Second, "how long each side of a round is under load")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if b.Rounds < 1 || b.Slice < 100*time.Millisecond {
			return errors.New("--rounds wants 1 or more, --slice 100ms or more")
		}
		if b.Command, err = os.Executable(); err != nil {
			return err
		}
		result, err := b.Run(cmd.Context())
		if err != nil {
			return err
		}
		err = show(cmd, result, asJSON)
		if failed := result.Failures(); err == nil && failed > 0 {
			err = fmt.Errorf("%d calls failed", failed)
		}
		return err
	}
	return cmd
}

// plainHandlerCmd serves the handler that bench control-plane compares with.
func plainHandlerCmd() *cobra.Command {
	cmd := &cobra.Command{Use: plainHandler, Hidden: true, Args: cobra.NoArgs}
	var runDir string
	runDirFlag(cmd.Flags(), &runDir)
	cmd.RunE = func(*cobra.Command, []string) error {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		if err := noteListen(runDir, listener); err != nil {
			return err
		}
		return controlplane.ServePlain(listener)
	}
	return cmd
}
