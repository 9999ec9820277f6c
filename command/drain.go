package command

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/node-agent/api"
)

func drainCmd() *cobra.Command {
	var req api.DrainRequest
	var wait time.Duration
	cmd := onNode("drain", "Take no new sandboxes and wait until the last one has gone",
		func(ctx context.Context, cmd *cobra.Command, node api.NodeClient, _ []string) error {
			ctx, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			reply, err := node.Drain(ctx, &req)
			if err == nil && !req.Undo {
				fmt.Fprintf(cmd.OutOrStdout(),
					"drained: %d sandboxes have gone, no new ones are taken\n", reply.Stopped)
			}
			return err
		})
	cmd.Args = cobra.NoArgs
	cmd.Flags().BoolVar(&req.Undo, "undo", false, "take new sandboxes again")
	cmd.Flags().BoolVar(&req.Cancel, "cancel", false,
		"end the running sandboxes instead of waiting for them")
	cmd.Flags().DurationVar(&wait, "wait", 10*time.Minute, "how long to wait")
	return cmd
}
