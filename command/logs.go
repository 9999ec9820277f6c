package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
)

func logsCmd() *cobra.Command {
	var req api.LogsRequest
	var stateDir, keyFrom string
	const short = "Show what the runtime in a sandbox has written lately, or a Knative service's"
	cmd := onNode("logs ID|SERVICE", short, func(
		ctx context.Context, cmd *cobra.Command, node api.NodeClient, args []string,
	) error {
		req.Id = args[0]
		lines, err := node.Logs(ctx, &req)
		if err == nil {
			err = printLogs(lines, cmd.OutOrStdout(), cmd.ErrOrStderr())
		}
		if status.Code(err) != codes.NotFound {
			return err
		}
		s, other := openService(cmd, args[0], stateDir, keyFrom)
		if other != nil {
			return fmt.Errorf("%w; nor is it known whether a service has that name: %w", err, other)
		}
		return s.logs(ctx, req.Follow)
	})
	cmd.Args = cobra.ExactArgs(1)
	f := cmd.Flags()
	f.BoolVarP(&req.Follow, "follow", "f", false,
		"go on until the sandbox ends; for a service, for ever")
	f.StringVar(&stateDir, "state-dir", usualStateDir, "where the invoker keeps its API key")
	f.StringVar(&keyFrom, "key-file", "", "the file with the key of the service's owner, - is"+
		" standard input (default: the key that the invoker was started with)")
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
		text := reply.Line.GetText()
		if sidecar := reply.Line.GetSidecar(); sidecar != "" {
			text = sidecar + ": " + text
		}
		if _, err := fmt.Fprintf(to, "%-30s %s\n", at, text); err != nil {
			return err
		}
	}
}
