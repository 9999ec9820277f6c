package command

import (
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/netpath/scon"
)

func statusCmd() *cobra.Command {
	var asJSON bool
	cmd := onNode("status", "Show the sandboxes and VFs of this node",
		func(ctx context.Context, cmd *cobra.Command, node api.NodeClient, _ []string) error {
			st, err := node.Status(ctx, &api.StatusRequest{})
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(st)
			}
			printStatus(cmd, st)
			return nil
		})
	cmd.Args = cobra.NoArgs
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printStatus(cmd *cobra.Command, st *api.StatusReply) {
	draining := ""
	if st.Draining {
		draining = ", draining"
	}
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "fastiov %s, driver %s%s; memory %d of %d MiB reserved; %d starts waiting\n\n",
		st.Version, st.Driver, draining, st.MemoryReservedMib, st.MemoryMib, st.Waiting)
	if st.Confinement != "" {
		fmt.Fprintf(out, "confinement: %s\n\n", st.Confinement)
	}
	if st.CacheLimitMib > 0 {
		fmt.Fprintf(out, "images: %d of %d MiB\n\n", st.CacheMib, st.CacheLimitMib)
	}
	if e := st.Express; e != nil {
		writeScon(out, scon.State{Bridge: e.Bridge, Followed: true, Answered: e.Answered,
			Others: e.Others, TCP: e.Tcp, Refused: e.Refused, Packets: e.Packets})
		fmt.Fprintln(out)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SANDBOX\tSTATE\tIMAGE\tVF\tPID\tMEMORY\tAGE\tSINCE\tREASON")
	for _, s := range st.Sandboxes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d MiB\t%s\t%s\t%s\n",
			s.Id, s.State, s.Image, s.Vf, s.Pid, s.MemoryMib, age(s.StartedNs),
			age(s.SinceNs), s.Reason)
	}
	fmt.Fprintln(w, "\nVF\tSTATE\tHOLDER\tLEASES\tRESET FAILURES\tMAC\tSINCE\tREASON")
	for _, v := range st.Vfs {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", v.Bdf, v.State, v.Owner, v.Generation,
			v.ResetFailures, v.Mac, age(v.SinceNs), v.Reason)
	}
	w.Flush()
	for _, l := range st.Leftovers {
		fmt.Fprintln(out, "left over:", l)
	}
}

func age(ns int64) string { return time.Since(time.Unix(0, ns)).Round(time.Second).String() }
