package command

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench/controlplane"
)

// benchAB compares this binary with a commit that it builds.
func benchAB() *cobra.Command {
	var ab controlplane.AB
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ab BASE",
		Short: "Compare this binary with a commit's, pair by pair: warm calls, and cold starts over sim",
		Args:  cobra.ExactArgs(1),
	}
	f := cmd.Flags()
	f.DurationVar(&ab.Slice, "slice", 500*time.Millisecond,
		"how long each side of a pair is under load")
	f.DurationVar(&ab.Within, "within", 20*time.Minute,
		"how long all pairs may take; of each load there are 30 to 400, until the intervals are ± 1.5 %")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if ab.Slice < 50*time.Millisecond || ab.Within < ab.Slice {
			return errors.New("--slice wants 50ms or more, --within more than that")
		}
		progress := cmd.ErrOrStderr()
		ab.Out = progress
		if ab.Head, err = os.Executable(); err != nil {
			return err
		}
		base, err := controlplane.Build(cmd.Context(), args[0], progress)
		if err != nil {
			return err
		}
		defer base.Remove()
		ab.Base = base.Command()
		result, err := ab.Run(cmd.Context())
		if err != nil {
			return err
		}
		result.Base, result.Head = base.Commit, version
		err = show(cmd, result, asJSON)
		if failed := result.Failures(); err == nil && failed > 0 {
			err = fmt.Errorf("%d calls failed", failed)
		}
		return err
	}
	return cmd
}
