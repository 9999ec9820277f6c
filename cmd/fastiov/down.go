package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/sandbox/jail"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/testbed"
)

// downCmd ends what `up` or `agent` started: the sandboxes, then the process, then, if asked, what it did to the machine.
func downCmd() *cobra.Command {
	var undo bool
	cmd := &cobra.Command{Use: "down", Short: "End fastiov on this machine, or the testbed it runs in", Args: cobra.NoArgs}
	runDir := runDirFlag(cmd)
	cmd.Flags().BoolVar(&undo, "undo", false, "put drivers and VFs back as they were found")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, out := cmd.Context(), cmd.OutOrStdout()
		node, hangUp, err := dialNode(*runDir)
		if err != nil {
			if s, err := testbed.Look(awayName); err == nil && s.State == "ready" {
				return testbed.Down(ctx, awayName, cmd.ErrOrStderr())
			}
			if err := endOrphans(*runDir, out); err != nil || !undo {
				return err
			}
			return vf.Undo(vf.Config{Run: *runDir})
		}
		defer hangUp()
		if _, err := node.Drain(ctx, &api.DrainRequest{Cancel: true}); err != nil {
			return err
		}
		if err := endServer(ctx, filepath.Join(*runDir, nodeSocket)); err != nil {
			return err
		}
		fmt.Fprintln(out, "fastiov is down")
		if undo {
			return vf.Undo(vf.Config{Run: *runDir})
		}
		return nil
	}
	return cmd
}

// endOrphans ends the sandboxes that an agent left which was killed.
func endOrphans(runDir string, out io.Writer) error {
	orphans := (&startup.Starter{RunDir: runDir}).Records()
	if len(orphans) == 0 {
		fmt.Fprintln(out, "nothing was up")
		return nil
	}
	unlock, err := lockRunDir(runDir) // an agent that is just starting would adopt them
	if err != nil {
		return err
	}
	defer unlock()
	host, err := jail.Open("fastiov", slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer host.Close()
	for _, rec := range orphans {
		host.End(rec.Spec)
		if err := os.RemoveAll(rec.Spec.Dir); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "ended %d sandboxes of an agent that was killed\n", len(orphans))
	return nil
}

// endServer ends the process that listens on a Unix socket: the kernel knows who that is, whatever any file says.
func endServer(ctx context.Context, socket string) error {
	pid, process, err := serverOf(socket)
	if err != nil {
		return fmt.Errorf("the process behind %s: %w", socket, err)
	}
	defer unix.Close(process)
	if err := unix.PidfdSendSignal(process, unix.SIGTERM, nil, 0); err != nil {
		return err
	}
	const patience = 30 * time.Second
	ended := []unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}
	for deadline := time.Now().Add(patience); ctx.Err() == nil; {
		n, err := unix.Poll(ended, int(time.Until(deadline).Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if n == 1 {
			return nil
		}
		return fmt.Errorf("process %d has not ended within %s of SIGTERM; its log says why", pid, patience)
	}
	return ctx.Err()
}

// serverOf returns the pid and a pidfd of the process that listens on socket.
func serverOf(socket string) (pid, process int, err error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		var peer *unix.Ucred
		if peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(peer.Pid)
			process, err = unix.PidfdOpen(pid, 0)
		}
	})
	return pid, process, errors.Join(controlErr, err)
}
