package command

import (
	"context"
	"encoding/json"
	"os"

	"golang.org/x/sys/unix"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/node-agent/doctor"
	"github.com/fastiov/fastiov/node-agent/image/build"
)

func doctorCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{Use: "doctor",
		Short: "Tell whether this machine can be a node, and if not, why", Args: cobra.NoArgs}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cache, err := build.Open("", cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		defer cache.Close()
		report := examine(cmd.Context(), cache)
		if !asJSON {
			report.Print(cmd.OutOrStdout())
			return report.Err()
		}
		err = json.NewEncoder(cmd.OutOrStdout()).Encode(struct {
			Node bool `json:"node"`
			doctor.Report
		}{report.Node(), report})
		if err != nil {
			return err
		}
		return report.Err()
	}
	return cmd
}

// examine checks this machine with what it has, and what the cache makes where that does not do.
func examine(ctx context.Context, cache *build.Builder) doctor.Report {
	kernel := func(ctx context.Context) (string, error) { return ordinaryKernel(ctx, cache) }
	return doctor.Check(ctx, kernel, cache.QEMU)
}

// ordinaryKernel is the kernel this machine runs or, where that is not on disk, Debian's.
func ordinaryKernel(ctx context.Context, cache *build.Builder) (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		if own := "/boot/vmlinuz-" + unix.ByteSliceToString(u.Release[:]); fileExists(own) {
			return own, nil
		}
	}
	boot, err := cache.Testbed(ctx)
	return boot.Kernel, err
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
