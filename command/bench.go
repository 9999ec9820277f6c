package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/node-agent/fastiovd"
	"github.com/fastiov/fastiov/node-agent/sandbox/bare"
	"github.com/fastiov/fastiov/node-agent/vf"
)

func benchCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "bench", Short: "Measure one part of a cold start by itself"}
	cmd.AddCommand(benchVFOpen(), benchDMAMap(), benchControlPlane(), benchAB(), benchJail(), benchRestart())
	return cmd
}

// benchVFOpen takes the VFs of one device for itself, so it runs beside an agent only on a device which that does not use.
func benchVFOpen() *cobra.Command {
	var (
		b      = bench.VFOpen{Out: os.Stderr}
		pf     string
		arms   []string
		asJSON bool
	)
	cmd := &cobra.Command{Use: "vf-open", Short: "Time N processes opening a VF each, released by a barrier", Args: cobra.NoArgs}
	f := cmd.Flags()
	f.IntSliceVar(&b.N, "n", []int{1, 4, 16, 64}, "how many at once")
	f.IntVar(&b.Rounds, "rounds", 10, "how many times each")
	f.StringSliceVar(&arms, "arms", nil, "ways to open, on fastiov's kernel: bus, per-vf, hierarchical, each also with +r (default: as the kernel stands)")
	f.StringVar(&pf, "pf", "nvme", "whose VFs: a device's address, driver or netdev")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(b.N) == 0 || slices.Min(b.N) < 1 || b.Rounds < 1 {
			return errors.New("--n and --rounds want 1 or more")
		}
		for _, name := range arms {
			arm, err := openArm(name)
			if err != nil {
				return err
			}
			b.Arms = append(b.Arms, arm)
		}
		if away, err := inTestbed(cmd.Context(), "/nonexistent"); away {
			return err
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		b.Holder = []string{self, vfHolder}
		return withVFs(cmd.Context(), pf, slices.Max(b.N), func(vfs []bench.GroupVF) error {
			b.VFs = vfs
			result, err := b.Run(cmd.Context())
			if err != nil {
				return err
			}
			return show(cmd, result, asJSON)
		})
	}
	return cmd
}

// benchDMAMap needs any VF of its own, as benchVFOpen does.
func benchDMAMap() *cobra.Command {
	var (
		b                                 = bench.DMAMap{Out: os.Stderr}
		iommus, sizes, memories, policies []string
		pf                                string
		asJSON                            bool
	)
	cmd := &cobra.Command{Use: "dma-map", Short: "Time what mapping guest memory for DMA takes, and where the rest of it went", Args: cobra.NoArgs}
	f := cmd.Flags()
	f.StringSliceVar(&iommus, "iommu", []string{bench.Type1}, "what makes the VF's address space: type1 (a container of vfio's) or iommufd")
	f.StringSliceVar(&sizes, "size", []string{"256M", "512M", "1G"}, "sizes of memory")
	f.StringSliceVar(&memories, "memory", []string{bench.SmallPages, bench.HugePages}, "pages of the memory: small (4 KiB), huge (transparent, 2 MiB) or hugetlb (2 MiB, which are set aside for it)")
	f.StringSliceVar(&policies, "policies", []string{"eager", "pagecache", "touchmap", "table"}, "when it is zeroed, of these")
	f.IntVar(&b.Rounds, "rounds", 10, "how many times each")
	f.StringVar(&pf, "pf", "nvme", "whose VF: a device's address, driver or netdev")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := b.Choose(iommus, sizes, memories, policies); err != nil {
			return err
		}
		if away, err := inTestbed(cmd.Context(), "/nonexistent"); away {
			return err
		}
		return withVFs(cmd.Context(), pf, 1, func(vfs []bench.GroupVF) error {
			b.VF = vfs[0]
			result, err := b.Run(cmd.Context())
			if err != nil {
				return err
			}
			return show(cmd, result, asJSON)
		})
	}
	return cmd
}

// benchJail needs root and no VF; it runs beside an agent.
func benchJail() *cobra.Command {
	b := bench.Jail{Out: os.Stderr}
	var asJSON bool
	cmd := &cobra.Command{Use: "jail", Short: "Time what the jail adds to the start of a VMM", Args: cobra.NoArgs}
	cmd.Flags().IntVar(&b.Rounds, "rounds", 100, "how many starts with and without it")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if b.Rounds < 1 {
			return errors.New("--rounds wants 1 or more")
		}
		result, err := b.Run(cmd.Context())
		if err != nil {
			return err
		}
		return show(cmd, result, asJSON)
	}
	return cmd
}

// withVFs takes n VFs of a device and gives them back when f returns.
func withVFs(ctx context.Context, pf string, n int, f func([]bench.GroupVF) error) error {
	runDir, err := os.MkdirTemp("/run", "fastiov-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(runDir)
	pool, err := vf.Open(ctx, vf.Config{PFs: []string{pf}, NumVFs: n, Run: runDir, Log: slog.Default()})
	if err != nil {
		return err
	}
	defer vf.Undo(vf.Config{Run: runDir}) // its error is no news to a benchmark that has its figures
	defer pool.Close()
	var vfs []bench.GroupVF
	for range n {
		lease, err := pool.Lease(vf.Owner{Sandbox: "bench"})
		if err != nil {
			return err
		}
		defer pool.Return(lease)
		vfs = append(vfs, bench.GroupVF{Group: lease.Group, BDF: lease.BDF})
	}
	return f(vfs)
}

// openArm is the arm called name: a lock, and +r for no reset of what is reset.
func openArm(name string) (bench.Arm, error) {
	lock, reset := strings.CutSuffix(name, "+r")
	set, err := fastiovd.Parse("l=" + lock)
	if err != nil {
		return bench.Arm{}, fmt.Errorf("no arm %q: there are bus, per-vf and hierarchical, each also with +r", name)
	}
	set.Reset = reset
	return bench.Arm{Name: name, Prepare: func(vfs []bench.GroupVF) error {
		if err := set.Apply(); err != nil {
			return err
		}
		for _, v := range vfs { // the lock is chosen when a VF is bound; all go first, for a set stays as long as one VF is in it
			if err := os.WriteFile("/sys/bus/pci/drivers/vfio-pci/unbind", []byte(v.BDF), 0); err != nil {
				return err
			}
		}
		for _, v := range vfs {
			if err := os.WriteFile("/sys/bus/pci/drivers_probe", []byte(v.BDF), 0); err != nil {
				return err
			}
		}
		return nil
	}}, nil
}

const vfHolder = "vf-holder"

// vfHolderCmd is a process of bench vf-open.
func vfHolderCmd() *cobra.Command {
	return &cobra.Command{Use: vfHolder + " HOLD", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var hold bench.Hold
			if err := json.Unmarshal([]byte(args[0]), &hold); err != nil {
				return err
			}
			var held *bare.VF
			attach := func() (err error) {
				held, err = bare.Attach(hold.Group)
				return err
			}
			return bench.HoldVF(hold, attach, func() error { return held.Open(hold.BDF) })
		}}
}

const bareVMM = "bare-vmm"

// bareVMMCmd is the process of a bare sandbox.
func bareVMMCmd() *cobra.Command {
	return &cobra.Command{Use: bareVMM + " ID MEMORY-MIB [GROUP BDF]", Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error { return bare.Main(args) }}
}

// show prints a result for a person, or as JSON.
func show(cmd *cobra.Command, result interface{ Print(io.Writer) }, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(result)
	}
	result.Print(cmd.OutOrStdout())
	return nil
}
