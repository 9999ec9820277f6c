package command

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/node-agent/vf"
)

func benchCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "bench", Short: "Measure one part of a cold start by itself"}
	cmd.AddCommand(benchVFOpen(), benchDMAMap(), benchControlPlane(), benchKnative(), benchAB(),
		benchJail(), benchCNI(), benchRestart(), benchStartup(), startupRoundCmd(),
		benchImage(), imageNodeCmd(), benchScon(), sconHostCmd())
	return cmd
}

// withVFs takes n VFs of a device and gives them back when f returns.
func withVFs(ctx context.Context, pf string, n int, f func([]bench.GroupVF) error) error {
	owner, err := vf.Process(vf.Bench, "bench", os.Getpid())
	if err != nil {
		return err
	}
	runDir, err := os.MkdirTemp("/run", "fastiov-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(runDir)
	pool, err := vf.Open(ctx, vf.Config{PFs: []string{pf}, NumVFs: n, Run: runDir,
		Log: slog.Default()})
	if err != nil {
		return err
	}
	// The benchmark has its figures, so an error here does not matter to it.
	defer vf.Undo(vf.Config{Run: runDir})
	defer pool.Close()
	var vfs []bench.GroupVF
	for range n {
		lease, err := pool.Lease(owner, vf.Want{})
		if err != nil {
			return err
		}
		defer pool.Return(lease)
		vfs = append(vfs, bench.GroupVF{Group: lease.Group, BDF: lease.BDF})
	}
	return f(vfs)
}

// show prints a result for a person, or as JSON.
func show(cmd *cobra.Command, result interface{ Print(io.Writer) }, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(result)
	}
	result.Print(cmd.OutOrStdout())
	return nil
}
