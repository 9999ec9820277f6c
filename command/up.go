package command

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fastiov/fastiov/command/settings"
	"github.com/fastiov/fastiov/invoker/live"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/metrics"
	"github.com/fastiov/fastiov/testbed"
)

// upCmd runs an agent and its invoker: on this machine if it can be a node, else in the testbed.
func upCmd() *cobra.Command {
	var n nodeFlags
	var i invokerFlags
	var logs logFlags
	var foreground bool
	var kernel string
	cmd := &cobra.Command{Use: "up",
		Short: "Start fastiov here, or in a testbed where this machine cannot be a node",
		Args:  cobra.NoArgs}
	n.register(cmd)
	i.register(cmd)
	logs.register(cmd)
	settings.Add(cmd, invokerSection, func(f *pflag.FlagSet) {
		f.StringVar(&i.user, "invoker-user", "", "who the invoker runs as, in a process of its own"+
			" (default: "+frontUser+"; with sim, the agent's process)")
	})
	cmd.Flags().StringVar(&kernel, "kernel", testbed.DebianKernel, "of the testbed, where one is"+
		" the node: debian, or patched, fastiov's own, built first if need be")
	cmd.Flags().BoolVar(&foreground, "foreground", false,
		"stay in the foreground, as a service does")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch again := newReload(cmd, &logs, logs.open(os.Stderr)); {
		case foreground && i.account(n.sandbox) != "":
			return serveApart(cmd.Context(), cmd, &n, &i, again, os.Stderr)
		case foreground:
			return serveAll(cmd.Context(), &n, &i, again)
		}
		if n.sandbox.guest && n.images == "" {
			if away, err := upInTestbed(cmd, kernel, &n); away {
				return err
			}
		}
		if cmd.Flags().Changed("kernel") {
			return errors.New("--kernel is for a testbed, and fastiov would run on this machine; " +
				"leave it out (kernel-mod/README.md says how a machine gets fastiov's own kernel)")
		}
		if err := detach(cmd.Context(), n.runDir); err != nil {
			return err
		}
		key, err := i.key(n.stateDir)
		if err != nil {
			return err
		}
		addresses, err := readListen(n.runDir)
		if err == nil {
			announce(cmd.OutOrStdout(), "http://"+addresses[0], "http://"+n.metrics, key.String())
			if n.sandbox.note != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "sandboxes       %s\n\n", n.sandbox.note)
			}
		}
		if err == nil && i.storage != "" {
			fmt.Fprintf(cmd.OutOrStdout(), "storage         http://%s\n\n", i.storage)
		}
		return err
	}
	return cmd
}

// serveAll runs a node and its invoker in this process until ctx ends.
func serveAll(ctx context.Context, n *nodeFlags, i *invokerFlags, again *reload) error {
	log := again.log
	unlock, err := n.lock()
	if err != nil {
		return err
	}
	defer unlock()
	front, err := i.open(ctx, n.runDir, n.stateDir, log)
	if err != nil {
		return err
	}
	defer front.close()
	traces, err := openTraces(ctx)
	if err != nil {
		return err
	}
	defer traces.stop()
	front.cfg.Tracer = traces.tracer
	node, err := openNode(ctx, n, newRegistry(asBoth), log)
	if err != nil {
		return err
	}
	defer node.close()
	stop, err := serveMetrics(n.metrics, nobodyElse, metrics.Page(node.registry), traces.query,
		node.agent.Ready, log)
	if err != nil {
		return err
	}
	defer stop()
	var agent api.NodeServer = node.agent
	if n.metrics != "" {
		agent = node.agent.Measured()
	}
	client := api.Local(agent)
	front.watched = []live.Named{{Name: "local", Node: client}}
	again.onHangup(ctx, node.reload)
	return front.serve(ctx, i.pool(), client, counting(n.metrics, node.registry))
}
