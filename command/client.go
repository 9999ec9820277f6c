package command

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
)

// dialNode connects to the agent whose run directory is runDir, by its Unix socket. The right to
// open it is the authentication.
func dialNode(runDir string) (api.NodeClient, func(), error) {
	if err := agentThere(runDir); err != nil {
		return nil, nil, err
	}
	return api.Dial(filepath.Join(runDir, nodeSocket), nil)
}

// agentThere says why the agent whose run directory is runDir cannot be spoken to, if so.
func agentThere(runDir string) error {
	socket := filepath.Join(runDir, nodeSocket)
	probe, err := net.Dial("unix", socket)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("no agent runs here any more (%s is dead); `fastiov up` starts one that "+
			"ends what it left and takes its VFs back, `fastiov agent` one that adopts it; "+
			"`fastiov down` ends it", socket)
	case errors.Is(err, os.ErrPermission):
		return notOfGroup(socket)
	case err != nil:
		return fmt.Errorf("no agent runs here (%s is not there); start one with `fastiov up`",
			socket)
	}
	return probe.Close()
}

// notOfGroup tells a user who may not open a socket how to get access.
func notOfGroup(socket string) error {
	return fmt.Errorf("%w: %s is for root and the group %s; use sudo, or have root run"+
		" `usermod -aG %[3]s USER` and log in again", os.ErrPermission, socket, frontGroup)
}

// onNode returns a command that speaks to the agent of this machine, or, if only a testbed runs, to
// the one inside it.
func onNode(use, short string, run func(ctx context.Context, cmd *cobra.Command,
	node api.NodeClient, args []string) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short}
	runDir := ofNode(cmd)
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
