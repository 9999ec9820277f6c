package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
)

// vfCmd hands VFs of this node to processes outside of sandboxes.
func vfCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "vf", Short: "Lease VFs of this node to processes of your own"}
	cmd.AddCommand(vfLease(), vfReturn(), vfWatch())
	return cmd
}

func vfLease() *cobra.Command {
	req := &api.LeaseRequest{Holder: &api.Holder{Kind: "device"}}
	cmd := onDevices("lease", "Give a VF to a process, until it ends or `fastiov vf return`",
		func(ctx context.Context, out io.Writer, devices api.DevicesClient, _ []string) error {
			reply, err := devices.Lease(ctx, req)
			if err != nil {
				return err
			}
			use := reply.Group + reply.Interface // it has one of them
			fmt.Fprintf(out, "%s as %s; give it back by `fastiov vf return %[1]s %[3]d`\n",
				reply.Bdf, use, reply.Generation)
			return nil
		})
	cmd.Args = cobra.NoArgs
	f := cmd.Flags()
	f.Int32Var(&req.Holder.Pid, "pid", 0, "the process that has the VF as long as it lives")
	f.StringVar(&req.Holder.Name, "name", "cli", "the holder's name, as fastiov status shows it")
	f.StringVar(&req.Bdf, "vf", "", "address of the VF (default: any)")
	f.StringVar(&req.Driver, "driver", "vfio", "vfio, or netdev for a network interface")
	_ = cmd.MarkFlagRequired("pid")
	return cmd
}

func vfReturn() *cobra.Command {
	cmd := onDevices("return VF LEASE", "Take a VF back that no process uses any more",
		func(ctx context.Context, _ io.Writer, devices api.DevicesClient, args []string) error {
			req := &api.ReturnRequest{Bdf: args[0]}
			if _, err := fmt.Sscan(args[1], &req.Generation); err != nil {
				return fmt.Errorf("%q is no lease; `fastiov vf watch` shows their numbers", args[1])
			}
			_, err := devices.Return(ctx, req)
			return err
		})
	cmd.Args = cobra.ExactArgs(2)
	return cmd
}

func vfWatch() *cobra.Command {
	cmd := onDevices("watch", "Show the VFs of this node, and what happens to them",
		func(ctx context.Context, out io.Writer, devices api.DevicesClient, _ []string) error {
			news, err := devices.Watch(ctx, &api.WatchRequest{})
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(out, 14, 0, 2, ' ', 0)
			fmt.Fprintln(w, "VF\tSTATE\tHOLDER\tDRIVER\tLEASE\tREASON")
			for {
				reply, err := news.Recv()
				if ctx.Err() != nil || errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				for _, d := range reply.Devices {
					holder := strings.Trim(d.GetHolder().GetKind()+"/"+d.GetHolder().GetName(), "/")
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n",
						d.Bdf, d.State, holder, d.Driver, d.Generation, cmp.Or(d.Lost, d.Reason))
				}
				w.Flush()
			}
		})
	cmd.Args = cobra.NoArgs
	return cmd
}

// onDevices is a command that speaks to the service for VFs of the agent on this machine, or in its
// testbed.
func onDevices(use, short string,
	run func(context.Context, io.Writer, api.DevicesClient, []string) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short}
	runDir := ofNode(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if away, err := inTestbed(cmd.Context(), *runDir); away {
			return err
		}
		if err := agentThere(*runDir); err != nil {
			return err
		}
		devices, hangUp, err := api.DialDevices(filepath.Join(*runDir, nodeSocket))
		if err != nil {
			return err
		}
		defer hangUp()
		err = run(cmd.Context(), cmd.OutOrStdout(), devices, args)
		if s, ok := status.FromError(err); ok && err != nil {
			return fmt.Errorf("%s", s.Message())
		}
		return err
	}
	return cmd
}
