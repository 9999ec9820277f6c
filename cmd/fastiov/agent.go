package main

import (
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/invoker/pool"
	nodeapi "github.com/fastiov/fastiov/node-agent/api"
)

// agentCmd runs a node without an invoker. Its sandboxes outlive it: the next agent on the same run directory adopts them.
func agentCmd() *cobra.Command {
	var n nodeFlags
	cmd := &cobra.Command{Use: "agent", Short: "Run the node agent alone, in the foreground", Args: cobra.NoArgs}
	n.register(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		node, err := openNode(cmd.Context(), &n, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
		if err != nil {
			return err
		}
		defer node.close()
		tellParent()
		<-cmd.Context().Done()
		return nil
	}
	return cmd
}

// invokerCmd runs an invoker for the agent of this machine: one with an API of its own, or one of an OpenWhisk cluster.
func invokerCmd() *cobra.Command {
	var i invokerFlags
	var b busFlags
	cmd := &cobra.Command{Use: "invoker", Short: "Run the invoker alone, in the foreground, for the agent of this machine", Args: cobra.NoArgs}
	i.register(cmd)
	b.register(cmd)
	runDir := runDirFlag(cmd)
	stateDir := cmd.Flags().String("state-dir", "/var/lib/fastiov", "the API key")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		node, hangUp, err := dialNode(*runDir)
		if err != nil {
			return err
		}
		defer hangUp()
		poolConfig := pool.Config{KeepAlive: i.keepAlive, Wait: i.wait, Start: 3 * time.Minute}
		if b.wanted() {
			sandboxes := pool.New(poolConfig, node)
			defer sandboxes.Close()
			return b.serve(cmd.Context(), []nodeapi.NodeClient{node}, sandboxes, i.host(), log)
		}
		key, err := openwhisk.LoadKey(i.listen, keyFile(*stateDir))
		if err != nil {
			return err
		}
		listener, err := net.Listen("tcp", i.listen)
		if err != nil {
			return err
		}
		defer listener.Close()
		if err := noteListen(*runDir, listener); err != nil {
			return err
		}
		api, err := openwhisk.New(openwhisk.Config{
			Version: version, Key: key, APIHost: i.host(),
			Pool: poolConfig,
		}, node, prometheus.NewRegistry())
		if err != nil {
			return err
		}
		defer api.Close()
		return serveUntil(cmd.Context(), api.Server(), listener, log)
	}
	return cmd
}
