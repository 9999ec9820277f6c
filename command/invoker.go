package command

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/invoker/live"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/metrics"
)

// invokerCmd runs an invoker for the agents it is given: one with an API of its own, or one of an OpenWhisk cluster.
func invokerCmd() *cobra.Command {
	var i invokerFlags
	var b busFlags
	var far apiFlags
	var logs logFlags
	cmd := &cobra.Command{Use: "invoker", Short: "Run the invoker alone, in the foreground, for the agents of this machine and others", Args: cobra.NoArgs}
	addresses := cmd.Flags().StringArray("node", nil, "an agent: host:port, or the path of its Unix socket; once for each (default: the one of this machine)")
	far.registerKeys(cmd)
	i.register(cmd)
	b.register(cmd)
	logs.register(cmd)
	address := cmd.Flags().String("metrics", "127.0.0.1:9465", metricsHelp)
	runDir := runDirFlag(cmd)
	stateDir := cmd.Flags().String("state-dir", "/var/lib/fastiov", "the API key, the store and the certificate")
	beside := cmd.Flags().String("agent-metrics", "", "a Unix socket that an agent has as its --metrics, to show what is there as well")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		leash, err := takeLeash()
		if err != nil {
			return err
		}
		defer func() { err = leash.tell(err) }()
		log, err := logs.open(os.Stderr)
		if err != nil {
			return err
		}
		log = log.With("process", "invoker")
		poolConfig, err := i.pool()
		if err != nil {
			return err
		}
		if len(*addresses) == 0 {
			*addresses = []string{filepath.Join(*runDir, nodeSocket)}
		}
		var nodes []api.NodeClient
		var watched []live.Named
		for _, address := range *addresses {
			node, hangUp, err := api.Dial(address, far.keys)
			if err != nil {
				return err
			}
			defer hangUp()
			poolConfig.Nodes = append(poolConfig.Nodes, pool.Named{Name: address, Node: node})
			watched = append(watched, live.Named{Name: address, Node: node})
			nodes = append(nodes, node)
		}
		traces, err := openTraces(cmd.Context())
		if err != nil {
			return err
		}
		defer traces.stop()
		registry := newRegistry(asInvoker)
		stop, err := serveMetrics(*address, groupOfSockets(), metrics.Page(registry, metrics.Remote(*beside)...), traces.query, nil, log)
		if err != nil {
			return err
		}
		defer stop()
		if b.wanted() {
			sandboxes := pool.New(poolConfig, nil)
			defer sandboxes.Close()
			registry.MustRegister(sandboxes)
			return b.serve(cmd.Context(), nodes, sandboxes, i.host(), registry, log)
		}
		front, err := i.open(cmd.Context(), *runDir, *stateDir, log)
		if err != nil {
			return err
		}
		defer front.close()
		front.cfg.Tracer = traces.tracer
		front.watched = watched
		if leash == nil { // else its sandboxes end with the agent
			front.warm = leftFile(*runDir)
		}
		ctx, err := leash.await(cmd.Context(), log)
		if err != nil {
			return err
		}
		return front.serve(ctx, poolConfig, nil, counting(*address, registry))
	}
	return cmd
}
