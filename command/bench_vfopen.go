package command

import (
	"encoding/json"
	"errors"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/sandbox/bare"
)

// benchVFOpen takes all VFs of one device for itself, so beside an agent it needs a device that the
// agent does not use.
func benchVFOpen() *cobra.Command {
	var (
		b      = bench.VFOpen{Out: os.Stderr}
		pf     string
		arms   []arm.Arm
		asJSON bool
	)
	cmd := &cobra.Command{Use: "vf-open",
		Short: "Time N processes opening a VF each, released by a barrier", Args: cobra.NoArgs}
	f := cmd.Flags()
	f.IntSliceVar(&b.N, "n", []int{1, 4, 16, 64}, "how many at once")
	f.IntVar(&b.Rounds, "rounds", 10, "how many times each")
	f.Var(armsFlag{&arms}, "arms", "arms that differ in l and r, on fastiov's kernel, as in"+
		" 'l=bus l=per-vf l=per-vf,r=1' (default: as the kernel stands)")
	f.StringVar(&pf, "pf", "nvme", "whose VFs: a device's address, driver or netdev")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(b.N) == 0 || slices.Min(b.N) < 1 || b.Rounds < 1 {
			return errors.New("--n and --rounds want 1 or more")
		}
		if err := onlyIn(arms, "opening a VF needs no memory", "l", "r"); err != nil {
			return err
		}
		for _, a := range arms {
			b.Arms = append(b.Arms, bench.Arm{Name: a.String(), Prepare: preparing(a)})
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

// preparing returns what makes the kernel open VFs as the arm says.
func preparing(a arm.Arm) func(vfs []bench.GroupVF) error {
	return func(vfs []bench.GroupVF) error {
		if err := a.Apply(); err != nil {
			return err
		}
		// The lock is chosen when a VF is bound. All are unbound first, since a set stays as long
		// as one VF is in it.
		for _, v := range vfs {
			if err := os.WriteFile("/sys/bus/pci/drivers/vfio-pci/unbind",
				[]byte(v.BDF), 0); err != nil {
				return err
			}
		}
		for _, v := range vfs {
			if err := os.WriteFile("/sys/bus/pci/drivers_probe", []byte(v.BDF), 0); err != nil {
				return err
			}
		}
		return nil
	}
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
