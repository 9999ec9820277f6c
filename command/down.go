package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/netpath/bridge"
	"github.com/fastiov/fastiov/node-agent/netpath/scon"
	"github.com/fastiov/fastiov/node-agent/sandbox/jail"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/testbed"
)

// downCmd ends what `up` or `agent` started: the invoker, the sandboxes, then the agent. If asked,
// it then undoes what the agent did to the machine.
func downCmd() *cobra.Command {
	var undo, force bool
	cmd := &cobra.Command{Use: "down",
		Short: "End fastiov on this machine, or the testbed it runs in", Args: cobra.NoArgs}
	runDir := ofNode(cmd)
	cmd.Flags().BoolVar(&undo, "undo", false, "put drivers and VFs back as they were found")
	cmd.Flags().BoolVar(&force, "force", false,
		"kill the agent, the invoker and all sandboxes, whether they answer or not")
	within := cmd.Flags().Duration("timeout", 3*api.UndoWithin,
		"how long the node may take to end; its invoker has a quarter of that")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), *within)
		defer cancel()
		out := cmd.OutOrStdout()
		undone := func(err error) error { // also where something of a sandbox stays
			switch {
			case !undo:
				return err
			case cmd.Context().Err() != nil:
				return errors.Join(err, errors.New("interrupted before drivers and VFs were put "+
					"back; run `fastiov down --undo` again"))
			}
			return errors.Join(err, vf.Undo(vf.Config{Run: *runDir}))
		}
		if force {
			return undone(endByForce(ctx, *runDir, out))
		}
		node, hangUp, err := dialNode(*runDir)
		if errors.Is(err, os.ErrPermission) {
			return err // what is there cannot be told
		}
		if err != nil {
			switch up := testbedIsUp(); {
			case up && isUsual(*runDir):
				return testbed.Down(ctx, awayName, cmd.ErrOrStderr())
			case up: // it is not what was named
				fmt.Fprintln(cmd.ErrOrStderr(),
					"the testbed stays up: `fastiov testbed down` ends it")
			}
			return undone(endOrphans(ctx, *runDir, out))
		}
		defer hangUp()
		err = endNode(ctx, node, *runDir, *within/4, cmd.ErrOrStderr())
		if errors.Is(err, errStays) || err != nil && ctx.Err() != nil {
			return fmt.Errorf(
				"the node has not ended: %w; `fastiov down --force` kills what is left of it", err)
		}
		if err != nil {
			return err
		}
		if _, err = endRecorded(ctx, *runDir); err == nil { // what the agent could not end
			fmt.Fprintln(out, "fastiov is down")
		}
		return undone(err)
	}
	return cmd
}

// endNode ends the invoker, the sandboxes and the agent. If an invoker does not end in time, its
// agent ends it, and kills it if need be: an agent may need what is left of the time for that, and
// for the calls that it cuts off (api.UndoWithin).
func endNode(ctx context.Context, node api.NodeClient, runDir string, forInvoker time.Duration,
	warn io.Writer) error {
	err := endFront(ctx, runDir, forInvoker)
	if errors.Is(err, errStays) {
		fmt.Fprintf(warn, "the invoker: %v; it ends with the agent\n", err)
	} else if err != nil {
		return err
	}
	if _, err := node.Drain(ctx, &api.DrainRequest{Cancel: true, Once: true}); err != nil {
		return err
	}
	return endServer(ctx, filepath.Join(runDir, nodeSocket))
}

// endByForce kills the processes that listen on the sockets of the run directory, without a word,
// and then ends the sandboxes that it has records of.
func endByForce(ctx context.Context, runDir string, out io.Writer) error {
	killed := map[int]bool{}
	dying, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	// The agent goes first: it would start its invoker again.
	for _, socket := range []string{nodeSocket, invokerSocket} {
		socket = filepath.Join(runDir, socket)
		pid, process, err := serverOf(socket)
		switch {
		case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ECONNREFUSED),
			errors.Is(err, unix.ESRCH):
			continue // it is dead, or was never there
		case err != nil: // as where it hangs and as many wait for it as may
			return fmt.Errorf(
				"who listens on %s cannot be told: %w; see `ss -xlp`, kill it, and try again",
				socket, err)
		}
		unix.Close(process)
		if err := signalServer(dying, socket, unix.SIGKILL); err != nil {
			return err
		}
		killed[pid] = true
	}
	ended, err := endRecorded(ctx, runDir)
	fmt.Fprintf(out, "killed processes %v and ended %d sandboxes\n",
		slices.Sorted(maps.Keys(killed)), ended)
	return err
}

// endOrphans ends the sandboxes that an agent left which was killed.
func endOrphans(ctx context.Context, runDir string, out io.Writer) error {
	ended, err := endRecorded(ctx, runDir)
	switch {
	case err != nil:
		return err
	case ended == 0:
		fmt.Fprintln(out, "nothing was up")
	default:
		fmt.Fprintf(out, "ended %d sandboxes of an agent that was killed\n", ended)
	}
	return nil
}

// endRecorded ends the sandboxes that the run directory has records of, and returns how many those
// were.
func endRecorded(ctx context.Context, runDir string) (int, error) {
	orphans := (&startup.Starter{RunDir: runDir}).Records()
	if len(orphans) == 0 && !isThere(containersDir(runDir)) && !isThere(bridgeDir(runDir)) {
		return 0, nil
	}
	unlock, err := lockRunDir(runDir) // an agent that is just starting would adopt them
	if err != nil {
		return 0, err
	}
	defer unlock()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	clearing := clearDrivers(ctx, runDir, nil, log)
	errs := make([]error, len(orphans))
	var ending sync.WaitGroup
	for i, rec := range orphans { // side by side: each may take its time
		ending.Go(func() {
			if errs[i] = jail.End("fastiov", rec.Spec); errs[i] == nil {
				errs[i] = os.RemoveAll(rec.Spec.Dir)
			}
		})
	}
	ending.Wait()
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	err = errors.Join(append(errs, clearing)...)
	if err == nil { // else something may live whose rules that would take away
		err = bridge.Undo(bridgeDir(runDir))
		gone, records := scon.DetachGone(scon.Records()), scon.Records()
		switch {
		case gone == nil:
		case slices.Contains(scon.Attached(records), nodeName(runDir)):
			err = errors.Join(err, gone)
		default: // it is others'
			log.Warn("an express path of a bridge that is gone stays", "err", gone)
		}
	}
	return len(orphans) - len(errs), err
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// endFront ends the invoker if it is a process of its own, so that it answers its calls while there
// are sandboxes.
func endFront(ctx context.Context, runDir string, within time.Duration) error {
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
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return endServer(ctx, socket)
}
