package command

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench/express"
	"github.com/fastiov/fastiov/bench/kept"
)

const (
	sconHost     = "scon-host"
	messagesFile = "rounds.jsonl" // holds the rounds, in the folder of --plot
)

// sconHostCmd is a process of bench scon: the host of one arm.
func sconHostCmd() *cobra.Command {
	return &cobra.Command{Use: sconHost + " ARM", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return express.Serve(args[0], os.Stdin, cmd.OutOrStdout())
		}}
}

// benchScon compares the express path of containers with a native program and with a bridge.
func benchScon() *cobra.Command {
	var (
		b      express.Bench
		folder string
		asJSON bool
	)
	cmd := &cobra.Command{Use: "scon", Args: cobra.NoArgs,
		Short: "Compare what a message of a container costs by its bridge and on the express path" +
			" with a native one, and draw the SCON paper's figures"}
	f := cmd.Flags()
	f.StringSliceVar(&b.Loads, "loads", nil, "what is played, as udp-64 or 'tcp-*' (default: all: "+
		strings.Join(express.LoadNames(), ", ")+")")
	f.IntVar(&b.Rounds, "rounds", 21, "how often each arm plays each load, in turn")
	f.DurationVar(&b.Budget, "cpu", 200*time.Millisecond, "CPU time of a load in a round")
	f.StringVar(&folder, "plot", "",
		"folder that keeps the rounds and gets the figures; each run adds its rounds")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if b.Rounds < 1 || b.Budget <= 0 {
			return errors.New("--rounds wants 1 or more, and --cpu a time")
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		// The processes of hosts end with the thread that has started them.
		runtime.LockOSThread()
		b.Command, b.Out = []string{self, "bench", sconHost}, cmd.ErrOrStderr()
		b.Version = version
		if b.Kept, err = kept.Open[express.Round](folder, messagesFile); err != nil {
			return err
		}
		defer b.Kept.Close()
		result, err := b.Run(cmd.Context())
		if err != nil {
			return err
		}
		if folder != "" {
			if err := result.Draw(folder, commandLine()); err != nil {
				return err
			}
			fmt.Fprintf(b.Out, "scon  see %s\n", filepath.Join(folder, express.Page))
		}
		return show(cmd, result, asJSON)
	}
	return cmd
}
