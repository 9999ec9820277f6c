package command

import (
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/fastiovd"
)

// benchDMAMap needs any VF of its own, as benchVFOpen does.
func benchDMAMap() *cobra.Command {
	var (
		b                       = bench.DMAMap{Out: os.Stderr}
		iommus, sizes, memories []string
		arms                    = everyPolicy()
		pf                      string
		asJSON                  bool
	)
	cmd := &cobra.Command{Use: "dma-map",
		Short: "Time what mapping guest memory for DMA takes, and where the rest of it went",
		Args:  cobra.NoArgs}
	f := cmd.Flags()
	f.StringSliceVar(&iommus, "iommu", []string{bench.Type1},
		"what makes the VF's address space: type1 (a container of vfio's) or iommufd")
	f.StringSliceVar(&sizes, "size", []string{"256M", "512M", "1G"}, "sizes of memory")
	f.StringSliceVar(&memories, "memory", []string{bench.SmallPages, bench.HugePages},
		"pages of the memory: small (4 KiB), huge (transparent, 2 MiB) or hugetlb (2 MiB, which are set aside for it)")
	f.Var(armsFlag{&arms}, "arms", "arms that differ in d, and in the barrier that d wants")
	f.IntVar(&b.Rounds, "rounds", 10, "how many times each")
	f.StringVar(&pf, "pf", "nvme", "whose VF: a device's address, driver or netdev")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := onlyIn(arms, "a mapping is of memory", "d", "barrier"); err != nil {
			return err
		}
		var policies []fastiovd.Policy
		for _, a := range arms {
			if slices.Contains(policies, a.Memory) {
				return fmt.Errorf("--arms %s: no mapping waits for a barrier; give each d once", a)
			}
			policies = append(policies, a.Memory)
		}
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

// everyPolicy returns an arm for each way to zero memory.
func everyPolicy() (arms []arm.Arm) {
	for _, policy := range fastiovd.Policies {
		a := arm.None
		if a.Memory = policy; policy == fastiovd.Table {
			a.Barrier = arm.NoBarrier
		}
		arms = append(arms, a)
	}
	return arms
}
