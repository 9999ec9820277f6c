// Command fastiov is the node agent, its invoker, its testbed and its tools: every subcommand is one process of the system.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	root := &cobra.Command{
		Use:           "fastiov",
		Short:         "Cold-start functions in microVMs with passed-through SR-IOV virtual functions",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(testbedCmd(), doctorCmd())

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := root.ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fastiov:", err)
		os.Exit(1)
	}
}
