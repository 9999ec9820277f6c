package command

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/command/settings"
)

// The sections of the configuration file.
var (
	nodeSection = settings.Section{
		Name: "node", What: "what `up` and `agent` make of this machine",
	}
	invokerSection = settings.Section{Name: "invoker", What: "what `up` and `invoker` serve"}
	clusterSection = settings.Section{
		Name: "cluster", What: "the OpenWhisk cluster that an `invoker` joins, if it joins one",
	}
	logSection = settings.Section{Name: "log", What: "the log of each process, on standard error"}
)

// configured returns the commands that read the configuration file.
func configured() []*cobra.Command {
	return []*cobra.Command{upCmd(), agentCmd(), invokerCmd()}
}

// keys returns every key that there is, of commands of its own.
func keys() []settings.Key { return settings.Keys(configured()...) }

// Variables that configure nothing: of processes that start each other, of tests and of CI. Two are
// of the environment alone.
var otherVariables = []string{
	readyFD, inheritance, "FASTIOV_TEST_", "FASTIOV_CI", "FASTIOV_CI_", "FASTIOV_VERSION",
	"FASTIOV_CACHE", "FASTIOV_STATE",
}

// formerVariables held flags of the units in packaging/.
var formerVariables = []string{"FASTIOV_AGENT", "FASTIOV_INVOKER"}

// configure sets the flags of a command that its command line left out. A command that only asks a
// node needs no more than where that is, so it goes on where the configuration has mistakes.
func configure(cmd *cobra.Command, _ []string) error {
	if len(settings.Keys(cmd)) == 0 {
		return nil
	}
	warn := func(format string, args ...any) {
		fmt.Fprintf(cmd.ErrOrStderr(), "fastiov: warning: "+format+"\n", args...)
	}
	err := settings.Load(cmd, keys())
	if !slices.Contains([]string{"up", "agent", "invoker", "config"}, cmd.Name()) {
		var mistakes settings.Mistakes
		if errors.As(err, &mistakes) {
			warn("the configuration has mistakes (%d); `fastiov config` names them", len(mistakes))
		} else if err != nil {
			warn("%v", err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	for _, said := range settings.Strangers(keys(), append(otherVariables, formerVariables...)...) {
		warn("%s", said)
	}
	for _, name := range formerVariables {
		if os.Getenv(name) != "" {
			warn("%s goes with the next release; write what it holds into %s",
				name, settings.DefaultFile)
		}
	}
	return nil
}

// configCmd shows what a command would have in force, with the flags of that command, too.
func configCmd() *cobra.Command {
	commands := configured()
	cmd := showConfig(commands[0])
	cmd.Use = "config"
	cmd.Short = "Show what is configured for `fastiov up`, and where each value comes from"
	blank := cmd.Flags().Bool("default", false,
		"print a file with all keys, their defaults and what they are")
	show := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *blank {
			_, err := fmt.Fprint(cmd.OutOrStdout(), settings.Default(keys()))
			return err
		}
		return show(cmd, args)
	}
	for _, of := range commands[1:] {
		cmd.AddCommand(showConfig(of))
	}
	return cmd
}

func showConfig(of *cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: of.Name(), Short: "The same for `fastiov " + of.Name() + "`", Args: cobra.NoArgs,
	}
	cmd.Flags().AddFlagSet(of.Flags())
	cmd.Flags().SortFlags = false
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		settings.Show(cmd.OutOrStdout(), settings.Keys(cmd))
		return nil
	}
	return cmd
}

// Files returns the files that are generated from the keys, by their paths in the repository.
func Files() map[string][]byte {
	return map[string][]byte{
		"docs/configuration.md":  []byte(configurationHead + settings.Reference(keys())),
		"packaging/fastiov.yaml": []byte(settings.Default(keys())),
	}
}

// configurationHead is the part of docs/configuration.md above the tables.
//
//go:embed configuration.md
var configurationHead string
