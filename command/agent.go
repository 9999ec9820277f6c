package command

import (
	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/node-agent/api/metrics"
)

// agentCmd runs a node without an invoker. Its sandboxes outlive it: the next agent on the same run
// directory adopts them.
func agentCmd() *cobra.Command {
	var n nodeFlags
	var logs logFlags
	cmd := &cobra.Command{
		Use: "agent", Short: "Run the node agent alone, in the foreground", Args: cobra.NoArgs,
	}
	n.register(cmd)
	logs.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		again := newReload(cmd, &logs, logs.open(cmd.ErrOrStderr()))
		unlock, err := n.lock()
		if err != nil {
			return err
		}
		defer unlock()
		n.group = groupOfSockets()
		node, err := openNode(cmd.Context(), &n, newRegistry(asAgent), again.log)
		if err != nil {
			return err
		}
		defer node.close()
		stop, err := serveMetrics(n.metrics, n.group, metrics.Page(node.registry), nil,
			node.agent.Ready, node.log)
		if err != nil {
			return err
		}
		defer stop()
		again.onHangup(cmd.Context(), node.reload)
		tellParent(ready)
		<-cmd.Context().Done()
		return nil
	}
	return cmd
}
