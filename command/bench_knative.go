package command

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench/controlplane"
)

// benchKnative starts a server of its own, on loopback and in directories of its own.
func benchKnative() *cobra.Command {
	b := controlplane.Bench{Out: os.Stderr}
	var (
		oracle, folder string
		asJSON         bool
	)
	cmd := &cobra.Command{Use: "knative", Args: cobra.NoArgs,
		Short: "What Knative's API costs where a sandbox costs nothing: until a service is ready," +
			" and from zero"}
	f := cmd.Flags()
	f.StringVar(&oracle, "oracle", "", "instead, compare with Kubernetes's API server in turn, "+
		"started by this command line: see .ci/tier/full/knative-oracle")
	f.StringVar(&folder, "plot", "", "folder that gets the figures of that comparison")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if b.Command, err = os.Executable(); err != nil {
			return err
		}
		if oracle != "" {
			return compareKnative(cmd, &b, oracle, folder, asJSON)
		}
		result, err := b.Knative(cmd.Context())
		if err != nil {
			return err
		}
		if err := show(cmd, result, asJSON); err != nil {
			return err
		}
		return result.Err()
	}
	return cmd
}

func compareKnative(
	cmd *cobra.Command, b *controlplane.Bench, oracle, folder string, asJSON bool,
) error {
	result, err := b.Against(cmd.Context(), oracle)
	if err != nil {
		return err
	}
	if folder != "" {
		if err := result.Draw(folder); err != nil {
			return err
		}
	}
	return show(cmd, result, asJSON)
}
