package command

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench"
)

// benchJail needs root and no VF; it runs beside an agent.
func benchJail() *cobra.Command {
	b := bench.Jail{Out: os.Stderr}
	var asJSON bool
	cmd := &cobra.Command{Use: "jail", Short: "Time what the jail adds to the start of a VMM",
		Args: cobra.NoArgs}
	cmd.Flags().IntVar(&b.Rounds, "rounds", 100, "how many starts with and without it")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if b.Rounds < 1 {
			return errors.New("--rounds wants 1 or more")
		}
		result, err := b.Run(cmd.Context())
		if err != nil {
			return err
		}
		return show(cmd, result, asJSON)
	}
	return cmd
}
