package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/node-agent/api"
)

func logsCmd() *cobra.Command {
	var req api.LogsRequest
	const short = "Show what the runtime in sandbox ID has written lately"
	cmd := onNode("logs ID", short, func(
		ctx context.Context, cmd *cobra.Command, node api.NodeClient, args []string,
	) error {
		req.Id = args[0]
		lines, err := node.Logs(ctx, &req)
		if err != nil {
			return err
		}
		return printLogs(lines, cmd.OutOrStdout(), cmd.ErrOrStderr())
	})
	cmd.Args = cobra.ExactArgs(1)
	cmd.Flags().BoolVarP(&req.Follow, "follow", "f", false, "go on until the sandbox ends")
	return cmd
}

// printLogs prints each line where its runtime wrote it, and how many are missing.
func printLogs(lines interface {
	Recv() (*api.LogsReply, error)
}, out, failures io.Writer) error {
	for {
		reply, err := lines.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if reply.Missed > 0 {
			fmt.Fprintf(failures, "fastiov: %d lines came too fast and are missing here\n",
				reply.Missed)
		}
		to := out
		if reply.Line.GetStream() == "stderr" {
			to = failures
		}
		at := time.Unix(0, reply.Line.GetTimeNs()).UTC().Format(time.RFC3339Nano)
		if _, err := fmt.Fprintf(to, "%-30s %s\n", at, reply.Line.GetText()); err != nil {
			return err
		}
	}
}
