package command

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fastiov/fastiov/command/settings"
	"github.com/fastiov/fastiov/invoker/live"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/metrics"
)

// aloneFlags hold, beside invokerFlags, the settings of an invoker that no agent has started.
type aloneFlags struct {
	nodes            []string
	far              apiFlags
	metrics, beside  string
	runDir, stateDir string
}

func (a *aloneFlags) flags(f *pflag.FlagSet) {
	f.StringArrayVar(&a.nodes, "node", nil, "an agent: host:port, or the path of its Unix socket;"+
		" once for each (default: the one of this machine)")
	a.far.keyFlags(f)
	f.StringVar(&a.metrics, "metrics", "127.0.0.1:9465", metricsHelp)
	settings.Check(f, isAddressOrSocket, "metrics")
	f.StringVar(&a.runDir, "run-dir", usualRunDir, "its socket, and where it is served")
	f.StringVar(&a.stateDir, "state-dir", usualStateDir,
		"the API key, the store and the certificate")
	f.StringVar(&a.beside, "agent-metrics", "",
		"a Unix socket that an agent has as its --metrics, to show what is there as well")
}

// invokerCmd runs an invoker for the agents it is given: one with an API of its own, or one of an
// OpenWhisk cluster.
func invokerCmd() *cobra.Command {
	var alone aloneFlags
	var i invokerFlags
	var b busFlags
	var logs logFlags
	cmd := &cobra.Command{
		Use: "invoker", Args: cobra.NoArgs,
		Short: "Run the invoker alone, in the foreground, for the agents of this machine and others",
	}
	settings.Add(cmd, invokerSection, alone.flags)
	i.register(cmd)
	b.register(cmd)
	logs.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		leash, err := takeLeash(&logs)
		if err != nil {
			return err
		}
		defer func() { err = leash.tell(err) }()
		log := logs.open(os.Stderr).With("process", "invoker")
		again := newReload(cmd, &logs, log)
		poolConfig := i.pool()
		addresses := alone.nodes
		if len(addresses) == 0 {
			addresses = []string{filepath.Join(alone.runDir, nodeSocket)}
		}
		var nodes []api.NodeClient
		var watched []live.Named
		alone.far.keys.Log = log
		for _, address := range addresses {
			node, hangUp, err := api.Dial(address, &alone.far.keys)
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
		page := metrics.Page(registry, metrics.Remote(alone.beside)...)
		stop, err := serveMetrics(alone.metrics, groupOfSockets(), page, traces.query, nil, log)
		if err != nil {
			return err
		}
		defer stop()
		again.onHangup(cmd.Context())
		if b.wanted() {
			sandboxes := pool.New(poolConfig, nil)
			defer sandboxes.Close()
			registry.MustRegister(sandboxes)
			return b.serve(cmd.Context(), nodes, sandboxes, i.host(), registry, log)
		}
		front, err := i.open(cmd.Context(), alone.runDir, alone.stateDir, log)
		if err != nil {
			return err
		}
		defer front.close()
		front.cfg.Tracer = traces.tracer
		front.watched = watched
		if leash == nil { // else its sandboxes end with the agent
			front.warm = leftFile(alone.runDir)
		}
		ctx, err := leash.await(cmd.Context(), log)
		if err != nil {
			return err
		}
		return front.serve(ctx, poolConfig, nil, counting(alone.metrics, registry))
	}
	return cmd
}
