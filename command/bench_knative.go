package command

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench/controlplane"
)

// benchKnative starts a server of its own, on loopback and in directories of its own.
func benchKnative() *cobra.Command {
	b := controlplane.Bench{Out: os.Stderr}
	var asJSON bool
	cmd := &cobra.Command{Use: "knative", Args: cobra.NoArgs,
		Short: "What Knative's API costs where a sandbox costs nothing: until a service is ready," +
			" and from zero"}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if b.Command, err = os.Executable(); err != nil {
			return err
		}
		result, err := b.Knative(cmd.Context())
		if err != nil {
			return err
		}
		err = show(cmd, result, asJSON)
		if err == nil && result.Failed > 0 {
			err = fmt.Errorf("%d requests failed: %s", result.Failed, result.Example)
		}
		return err
	}
	return cmd
}
