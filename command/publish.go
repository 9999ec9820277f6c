package command

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/node-agent/api"
)

func publishCmd() *cobra.Command {
	req := &api.PublishRequest{}
	var udp bool
	const short = "Have a port of this machine lead to a port of sandbox ID on the bridge, until it" +
		" ends"
	cmd := onNode("publish ID PORT", short, func(
		ctx context.Context, cmd *cobra.Command, node api.NodeClient, args []string,
	) error {
		port, err := strconv.ParseUint(args[1], 10, 16)
		if err != nil || port == 0 {
			return fmt.Errorf("port %q: want 1 to 65535", args[1])
		}
		req.Id, req.Port, req.Protocol = args[0], uint32(port), "tcp"
		if udp {
			req.Protocol = "udp"
		}
		if req.HostPort == 0 {
			req.HostPort = req.Port
		}
		_, err = node.Publish(ctx, req)
		return err
	})
	cmd.Args = cobra.ExactArgs(2)
	cmd.Flags().Uint32Var(&req.HostPort, "at", 0,
		"port of this machine, 1024 or more (default: the same)")
	cmd.Flags().BoolVar(&udp, "udp", false, "of UDP, and not of TCP")
	return cmd
}
