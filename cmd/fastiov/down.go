package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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

// downCmd ends what `up` or `agent` started: the invoker, the sandboxes, then the agent, then, if asked, what it did to the machine.
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
		if err := endNode(ctx, node, *runDir, patience, cmd.ErrOrStderr()); err != nil {
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

// patience is how long a process may take to end that was told to.
const patience = 30 * time.Second

// endNode ends the invoker, the sandboxes and the agent. An invoker that does not end in time is ended by its
// agent, which kills it where need be.
func endNode(ctx context.Context, node api.NodeClient, runDir string, forInvoker time.Duration, warn io.Writer) error {
	err := endFront(ctx, runDir, forInvoker)
	if errors.Is(err, errStays) {
		fmt.Fprintf(warn, "the invoker: %v; it ends with the agent\n", err)
	} else if err != nil {
		return err
	}
	if _, err := node.Drain(ctx, &api.DrainRequest{Cancel: true}); err != nil {
		return err
	}
	return endServer(ctx, filepath.Join(runDir, nodeSocket), patience)
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
	for _, rec := range orphans {
		if err := jail.End("fastiov", rec.Spec); err != nil {
			return err
		}
		if err := os.RemoveAll(rec.Spec.Dir); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "ended %d sandboxes of an agent that was killed\n", len(orphans))
	return nil
}

// endFront ends the invoker where it is a process of its own, so that it answers what it has while there are sandboxes.
func endFront(ctx context.Context, runDir string, patience time.Duration) error {
	agent, process, err := serverOf(filepath.Join(runDir, nodeSocket))
	if err != nil {
		return err
	}
	defer unix.Close(process)
	if err := unix.PidfdSendSignal(process, 0, nil, 0); err != nil {
		return fmt.Errorf("process %d is not yours to end (%w); use sudo", agent, err)
	}
	socket := filepath.Join(runDir, invokerSocket)
	invoker, theirs, err := serverOf(socket)
	if err != nil {
		return nil // there is none
	}
	unix.Close(theirs)
	if invoker == agent {
		return nil
	}
	return endServer(ctx, socket, patience)
}

// errStays is the error of a process that does not end, though it may yet.
var errStays = errors.New("it has not ended in time")

// endServer ends the process that listens on a Unix socket: the kernel knows who that is, whatever any file says.
func endServer(ctx context.Context, socket string, patience time.Duration) error {
	pid, process, err := serverOf(socket)
	if err != nil {
		return fmt.Errorf("the process behind %s: %w", socket, err)
	}
	defer unix.Close(process)
	if err := unix.PidfdSendSignal(process, unix.SIGTERM, nil, 0); err != nil {
		return err
	}
	ended := []unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}
	for deadline := time.Now().Add(patience); ctx.Err() == nil; {
		n, err := unix.Poll(ended, int(time.Until(deadline).Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if n == 1 {
			return nil
		}
		return fmt.Errorf("process %d: %w: %s after SIGTERM; its log says why", pid, errStays, patience)
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
