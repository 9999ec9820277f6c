package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/node-agent/netpath/scon"
)

// sconCmd gives a bridge its express path.
func sconCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "scon",
		Short: "Send packets of containers behind a bridge and NAT the express path"}
	cmd.AddCommand(sconAttach(), sconDetach(), sconStatus(), sconFlows(), sconWhy(), sconOff())
	return cmd
}

func sconAttach() *cobra.Command {
	cfg := scon.Config{Records: scon.Records(), Pins: scon.Pins}
	cmd := &cobra.Command{Use: "attach BRIDGE", Args: cobra.ExactArgs(1),
		Short: "Attach to a bridge, and follow its ports and the rules until this process ends",
		Long: "Attaches programs to the ports of a bridge, as Docker's, and to the devices that its" +
			" containers go out by. It changes no rule. It follows ports and rules until it ends;" +
			" the programs stay until `fastiov scon detach`, and are express as long as the rules" +
			" do not change.",
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg.Bridge, cfg.Log = args[0], slog.New(slog.NewTextHandler(os.Stderr, nil))
			s, err := scon.Attach(cfg)
			if err != nil {
				return err
			}
			defer s.Close()
			fmt.Fprintf(cmd.OutOrStdout(), "attached to %s; `fastiov scon status` shows what goes"+
				" express\n", cfg.Bridge)
			select {
			case <-cmd.Context().Done():
				return nil
			case <-s.Ended():
				return fmt.Errorf("bridge %s is gone", cfg.Bridge)
			}
		}}
	f := cmd.Flags()
	f.StringSliceVar(&cfg.Uplinks, "uplink", nil, "device that containers go out by,"+
		" or several (default: those that the default routes lead by)")
	f.BoolVar(&cfg.Settings, "conntrack", false, "set nf_conntrack_tcp_be_liberal and"+
		" nf_conntrack_tcp_ignore_invalid_rst, without which TCP stays regular; detach puts them back")
	return cmd
}

func sconDetach() *cobra.Command {
	return &cobra.Command{Use: "detach BRIDGE", Args: cobra.ExactArgs(1),
		Short: "Take the programs off a bridge, and put conntrack's settings back",
		RunE: func(_ *cobra.Command, args []string) error {
			return scon.Detach(scon.Records(), args[0])
		}}
}

// onScon returns a verb about the attachment to the bridge that the flag names, or to the only one.
func onScon(use, short string,
	do func(ctx context.Context, out io.Writer, v *scon.View, args []string) error) *cobra.Command {
	var bridge string
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if bridge == "" {
				all := scon.Attached(scon.Records())
				if len(all) != 1 {
					return fmt.Errorf("%d bridges have an express path (%s); name one by --bridge",
						len(all), strings.Join(all, ", "))
				}
				bridge = all[0]
			}
			v, err := scon.Open(scon.Records(), bridge)
			if err != nil {
				return err
			}
			return do(cmd.Context(), cmd.OutOrStdout(), v, args)
		}}
	cmd.Flags().StringVar(&bridge, "bridge", "", "the bridge (default: the only one)")
	return cmd
}

func sconStatus() *cobra.Command {
	var asJSON bool
	cmd := onScon("status", "Show how many packets go express, and what keeps the others from it",
		func(_ context.Context, out io.Writer, v *scon.View, _ []string) error {
			state, err := v.State()
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(out).Encode(state)
			}
			writeScon(out, state)
			return nil
		})
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

func writeScon(out io.Writer, s scon.State) {
	fmt.Fprintf(out, "express path of bridge %s", s.Bridge)
	if len(s.Uplinks) > 0 {
		fmt.Fprintf(out, ", by %s", strings.Join(s.Uplinks, ", "))
	}
	fmt.Fprint(out, ": ")
	switch {
	case s.Answered && s.Others:
		fmt.Fprintln(out, "packets may go express")
	case s.Answered:
		fmt.Fprintln(out, "packets of connections that have been answered may go express")
	default:
		fmt.Fprintln(out, "all packets are regular")
	}
	for _, why := range s.Refused {
		fmt.Fprintf(out, "  %s\n", why)
	}
	if !s.Followed {
		fmt.Fprintln(out, "  no process follows: a change of the rules ends the express path until"+
			" `fastiov scon attach`")
	}
	if !s.TCP {
		fmt.Fprintln(out, "  TCP is regular: conntrack tracks its windows; `fastiov scon attach"+
			" --conntrack` lets it tolerate gaps")
	}
	for _, file := range slices.Sorted(maps.Keys(s.Settings)) {
		fmt.Fprintf(out, "  %s was %s\n", file, s.Settings[file])
	}
	for _, reason := range slices.Sorted(maps.Keys(s.Packets)) {
		if n := s.Packets[reason]; n > 0 {
			fmt.Fprintf(out, "%12d %s\n", n, reason)
		}
	}
}

func sconFlows() *cobra.Command {
	return onScon("flows", "List the connections that have an entry, the busiest first",
		func(_ context.Context, out io.Writer, v *scon.View, _ []string) error {
			all, err := v.Entries()
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "PACKETS COME AS\tBY\tLEAVE AS\tBY\tEXPRESS\tBYTES\tNEXT")
			for _, e := range all {
				fmt.Fprintf(w, "%s\t%s\t%s %s\t%s\t%d\t%d\t%s\n", e.Flow, deviceName(e.By),
					e.BecomeFrom, e.BecomeTo, deviceName(e.Out), e.Packets, e.Bytes, e.Next)
			}
			return w.Flush()
		})
}

func deviceName(index int) string {
	if device, err := net.InterfaceByIndex(index); err == nil {
		return device.Name
	}
	return fmt.Sprintf("(gone: %d)", index)
}

func sconWhy() *cobra.Command {
	cmd := onScon("why PROTOCOL FROM TO",
		"Say which path the next packet takes that comes in so, and why",
		func(_ context.Context, out io.Writer, v *scon.View, args []string) error {
			f, err := scon.ParseFlow(args[0], args[1], args[2])
			if err != nil {
				return err
			}
			why, err := v.Why(f)
			for _, line := range why {
				fmt.Fprintln(out, line)
			}
			return err
		})
	cmd.Args = cobra.ExactArgs(3)
	return cmd
}

func sconOff() *cobra.Command {
	var undo bool
	cmd := onScon("off PROTOCOL FROM TO", "Put packets that come in so on the regular path",
		func(_ context.Context, _ io.Writer, v *scon.View, args []string) error {
			f, err := scon.ParseFlow(args[0], args[1], args[2])
			if err != nil {
				return err
			}
			if err = v.TurnOff(f, !undo); errors.Is(err, scon.ErrNotOff) {
				return fmt.Errorf("%s is not off", f)
			}
			return err
		})
	cmd.Args = cobra.ExactArgs(3)
	cmd.Flags().BoolVar(&undo, "undo", false, "let them go express again")
	return cmd
}
