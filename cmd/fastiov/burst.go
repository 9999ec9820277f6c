package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/functions"
	"github.com/fastiov/fastiov/invoker/openwhisk"
)

// burstCmd fires bursts at the invoker of this machine, or of the testbed.
func burstCmd() *cobra.Command {
	var (
		b        bench.Burst
		asJSON   bool
		listen   string
		stateDir string
	)
	cmd := &cobra.Command{Use: "burst", Short: "Cold-start N functions at once, a number of rounds, and show where the time went", Args: cobra.NoArgs}
	runDir := runDirFlag(cmd)
	f := cmd.Flags()
	f.IntVar(&b.N, "n", 7, "invocations at once")
	f.IntVar(&b.Rounds, "rounds", 1, "how many times")
	f.IntVar(&b.Memory, "memory", 256, "MiB per function")
	f.StringVar(&b.Kind, "kind", "python:3", "runtime: python:3 or nodejs:18")
	f.StringVar(&listen, "listen", "", "the invoker's listen address (default: that of `fastiov up`)")
	f.StringVar(&stateDir, "state-dir", "/var/lib/fastiov", "where the invoker keeps its API key")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if b.N < 1 || b.Rounds < 1 {
			return errors.New("--n and --rounds want 1 or more")
		}
		if away, err := inTestbed(cmd.Context(), *runDir); away {
			return err
		}
		node, hangUp, err := dialNode(*runDir)
		if err != nil {
			return err
		}
		defer hangUp()
		if listen == "" {
			if listen, err = readListen(*runDir); err != nil {
				return err
			}
		}
		key, err := openwhisk.LoadKey(listen, keyFile(stateDir))
		if err != nil {
			return err
		}
		b.URL, b.Key, b.Node, b.Out = "http://"+listen, key.String(), node, cmd.ErrOrStderr()
		b.Code = functions.HelloPython
		if strings.HasPrefix(b.Kind, "nodejs") {
			b.Code = functions.HelloNode
		}
		result, err := b.Run(cmd.Context())
		if err != nil {
			return err
		}
		if asJSON {
			err = json.NewEncoder(cmd.OutOrStdout()).Encode(result)
		} else {
			result.Print(cmd.OutOrStdout())
		}
		if err == nil && (result.Answered+result.Refused < result.Requested || result.Leaked > 0) {
			err = fmt.Errorf("%d of %d not answered, %d leaked", result.Requested-result.Answered-result.Refused, result.Requested, result.Leaked)
		}
		return err
	}
	return cmd
}
