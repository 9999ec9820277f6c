package command

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/node-agent/api"
)

func reportCmd() *cobra.Command {
	const short = "Write the report that a failed sandbox left to standard output, a .tar.gz; without ID, list them"
	cmd := onNode("report [ID]", short,
		func(ctx context.Context, cmd *cobra.Command, node api.NodeClient, args []string) error {
			var id string
			if len(args) > 0 {
				id = args[0]
			}
			reply, err := node.Report(ctx, &api.ReportRequest{Id: id})
			if err != nil {
				return err
			}
			if id == "" {
				return printReports(cmd.OutOrStdout(), reply.Kept)
			}
			_, err = cmd.OutOrStdout().Write(reply.TarGz)
			return err
		})
	cmd.Args = cobra.MaximumNArgs(1)
	return cmd
}

func printReports(out io.Writer, kept []*api.KeptReport) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SANDBOX\tWHEN\tWHY")
	for _, k := range kept {
		why, _, _ := strings.Cut(k.Why, "\n")
		fmt.Fprintf(w, "%s\t%s\t%s\n", k.Id, time.Unix(0, k.TimeNs).Format(time.DateTime), why)
	}
	return w.Flush()
}
