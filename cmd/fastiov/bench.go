package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/node-agent/sandbox/bare"
	"github.com/fastiov/fastiov/node-agent/vf"
)

func benchCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "bench", Short: "Measure one part of a cold start by itself"}
	cmd.AddCommand(benchVFOpen(), benchControlPlane())
	return cmd
}

// benchVFOpen takes the VFs of one device for itself, so it runs beside an agent only on a device which that does not use.
func benchVFOpen() *cobra.Command {
	var (
		b      = bench.VFOpen{Out: os.Stderr}
		pf     string
		asJSON bool
	)
	cmd := &cobra.Command{Use: "vf-open", Short: "Time N processes opening a VF each, released by a barrier", Args: cobra.NoArgs}
	f := cmd.Flags()
	f.IntSliceVar(&b.N, "n", []int{1, 4, 16, 64}, "how many at once")
	f.IntVar(&b.Rounds, "rounds", 10, "how many times each")
	f.StringVar(&pf, "pf", "nvme", "whose VFs: a device's address, driver or netdev")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(b.N) == 0 || slices.Min(b.N) < 1 || b.Rounds < 1 {
			return errors.New("--n and --rounds want 1 or more")
		}
		if away, err := inTestbed(cmd.Context(), "/nonexistent"); away {
			return err
		}
		runDir, err := os.MkdirTemp("/run", "fastiov-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(runDir)
		pool, err := vf.Open(cmd.Context(), vf.Config{PFs: []string{pf}, NumVFs: slices.Max(b.N), Run: runDir, Log: slog.Default()})
		if err != nil {
			return err
		}
		defer vf.Undo(vf.Config{Run: runDir}) // its error is no news to a benchmark that has its figures
		defer pool.Close()
		for range slices.Max(b.N) {
			lease, err := pool.Lease(vf.Owner{Sandbox: "bench"})
			if err != nil {
				return err
			}
			defer pool.Return(lease)
			b.VFs = append(b.VFs, bench.GroupVF{Group: lease.Group, BDF: lease.BDF})
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		b.Holder = []string{self, vfHolder}
		result, err := b.Run(cmd.Context())
		if err != nil {
			return err
		}
		if asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(result)
		}
		result.Print(cmd.OutOrStdout())
		return nil
	}
	return cmd
}

const vfHolder = "vf-holder"

// vfHolderCmd is a process of bench vf-open.
func vfHolderCmd() *cobra.Command {
	return &cobra.Command{Use: vfHolder + " GROUP BDF", Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return bench.HoldVF(os.Stdin, os.Stdout, func() error {
				_, err := bare.OpenVF(args[0], args[1])
				if err != nil {
					return fmt.Errorf("%s: %w", args[1], err)
				}
				return nil
			})
		}}
}

const bareVMM = "bare-vmm"

// bareVMMCmd is the process of a bare sandbox.
func bareVMMCmd() *cobra.Command {
	return &cobra.Command{Use: bareVMM + " ID MEMORY-MIB [GROUP BDF]", Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error { return bare.Main(args) }}
}
