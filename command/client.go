package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
)

const nodeSocket = "node.sock" // in the run directory

// dialNode connects to the agent whose run directory is runDir, by its Unix socket: who may open it is the authentication.
func dialNode(runDir string) (api.NodeClient, func(), error) {
	socket := filepath.Join(runDir, nodeSocket)
	probe, err := net.Dial("unix", socket)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return nil, nil, fmt.Errorf("no agent runs here any more (%s is dead); `fastiov up` starts one that ends what it left and takes its VFs back, `fastiov agent` one that adopts it; `fastiov down` ends it", socket)
	case errors.Is(err, os.ErrPermission):
		return nil, nil, notOfGroup(socket)
	case err != nil:
		return nil, nil, fmt.Errorf("no agent runs here (%s is not there); start one with `fastiov up`", socket)
	}
	probe.Close()
	return api.Dial(socket, api.Keys{})
}

// notOfGroup says to a user who may not open a socket how to come to it.
func notOfGroup(socket string) error {
	return fmt.Errorf("%s is for root and the group %s: use sudo, or have root run `usermod -aG %[2]s USER` and log in again", socket, frontGroup)
}

// onNode is a command that speaks to the agent of this machine, or, where only a testbed runs, to the one inside it.
func onNode(use, short string, run func(ctx context.Context, cmd *cobra.Command, node api.NodeClient, args []string) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short}
	runDir := runDirFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if away, err := inTestbed(cmd.Context(), *runDir); away {
			return err
		}
		node, hangUp, err := dialNode(*runDir)
		if err != nil {
			return err
		}
		defer hangUp()
		if err := run(cmd.Context(), cmd, node, args); err != nil {
			if s, ok := status.FromError(err); ok {
				return fmt.Errorf("%s", s.Message())
			}
			return err
		}
		return nil
	}
	return cmd
}

func runDirFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("run-dir", "/run/fastiov", "where a running agent keeps its sockets, leases and sandboxes")
}

func statusCmd() *cobra.Command {
	var asJSON bool
	cmd := onNode("status", "Show the sandboxes and VFs of this node", func(ctx context.Context, cmd *cobra.Command, node api.NodeClient, _ []string) error {
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
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SANDBOX\tSTATE\tIMAGE\tVF\tPID\tMEMORY\tAGE\tSINCE\tREASON")
	for _, s := range st.Sandboxes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d MiB\t%s\t%s\t%s\n",
			s.Id, s.State, s.Image, s.Vf, s.Pid, s.MemoryMib, age(s.StartedNs), age(s.SinceNs), s.Reason)
	}
	fmt.Fprintln(w, "\nVF\tSTATE\tOWNER\tLEASES\tRESET FAILURES\tMAC\tSINCE\tREASON")
	for _, v := range st.Vfs {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", v.Bdf, v.State, v.Owner, v.Generation, v.ResetFailures, v.Mac, age(v.SinceNs), v.Reason)
	}
	w.Flush()
	for _, l := range st.Leftovers {
		fmt.Fprintln(out, "left over:", l)
	}
}

func age(ns int64) string { return time.Since(time.Unix(0, ns)).Round(time.Second).String() }

func drainCmd() *cobra.Command {
	var req api.DrainRequest
	var wait time.Duration
	cmd := onNode("drain", "Take no new sandboxes and wait until the last one has gone", func(ctx context.Context, cmd *cobra.Command, node api.NodeClient, _ []string) error {
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		reply, err := node.Drain(ctx, &req)
		if err == nil && !req.Undo {
			fmt.Fprintf(cmd.OutOrStdout(), "drained: %d sandboxes have gone, no new ones are taken\n", reply.Stopped)
		}
		return err
	})
	cmd.Args = cobra.NoArgs
	cmd.Flags().BoolVar(&req.Undo, "undo", false, "take new sandboxes again")
	cmd.Flags().BoolVar(&req.Cancel, "cancel", false, "end the running sandboxes instead of waiting for them")
	cmd.Flags().DurationVar(&wait, "wait", 10*time.Minute, "how long to wait")
	return cmd
}

func reportCmd() *cobra.Command {
	const short = "Write the bundle that a failed sandbox left to standard output, a .tar.gz; without ID, list them"
	cmd := onNode("report [ID]", short, func(ctx context.Context, cmd *cobra.Command, node api.NodeClient, args []string) error {
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
