package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
)

func connectCmd() *cobra.Command {
	var listen string
	const short = "Connect standard input and output to a TCP port of sandbox ID, as nc does"
	cmd := onNode("connect ID PORT", short, func(
		ctx context.Context, cmd *cobra.Command, node api.NodeClient, args []string,
	) error {
		port, err := strconv.ParseUint(args[1], 10, 16)
		if err != nil || port == 0 {
			return fmt.Errorf("port %q: want 1 to 65535", args[1])
		}
		dial := func(ctx context.Context) (net.Conn, error) {
			return api.Connect(ctx, node, args[0], int(port))
		}
		if listen != "" {
			return forward(ctx, listen, dial, cmd.ErrOrStderr())
		}
		conn, err := dial(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		go func() {
			if _, err := io.Copy(conn, cmd.InOrStdin()); err == nil {
				_ = closeWrite(conn)
			}
		}()
		_, err = io.Copy(cmd.OutOrStdout(), conn)
		return err
	})
	cmd.Args = cobra.ExactArgs(2)
	cmd.Flags().StringVar(&listen, "listen", "",
		"take connections at this address of this machine instead, and forward each to the port")
	return cmd
}

// forward joins each connection at address to one that dial dials, until ctx ends.
func forward(
	ctx context.Context, address string, dial func(context.Context) (net.Conn, error),
	progress io.Writer,
) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Fprintf(progress, "listening on %s\n", l.Addr())
	var all sync.WaitGroup
	defer all.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		all.Go(func() {
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			inside, err := dial(ctx)
			if err != nil {
				fmt.Fprintln(progress, "fastiov:", status.Convert(err).Message())
				return
			}
			defer inside.Close()
			join(conn, inside)
		})
	}
}

// join passes on what both sides say, until both have said all.
func join(a, b net.Conn) {
	var both sync.WaitGroup
	oneWay := func(to, from net.Conn) {
		if _, err := io.Copy(to, from); err != nil || closeWrite(to) != nil {
			a.Close()
			b.Close()
		}
	}
	both.Go(func() { oneWay(a, b) })
	both.Go(func() { oneWay(b, a) })
	both.Wait()
}

// closeWrite says to the other side of conn that no more is sent.
func closeWrite(conn net.Conn) error {
	if half, can := conn.(interface{ CloseWrite() error }); can {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
