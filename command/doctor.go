package command

import (
	"context"
	"encoding/json"
	"io"
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
		report := doctor.Check(cmd.Context(), func(ctx context.Context) (string, error) {
			return ordinaryKernel(ctx, cmd.ErrOrStderr())
		})
		if !asJSON {
			report.Print(cmd.OutOrStdout())
			return report.Err()
		}
		err := json.NewEncoder(cmd.OutOrStdout()).Encode(struct {
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

// ordinaryKernel is the kernel this machine runs or, where that is not on disk, Debian's.
func ordinaryKernel(ctx context.Context, progress io.Writer) (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		if own := "/boot/vmlinuz-" + unix.ByteSliceToString(u.Release[:]); fileExists(own) {
			return own, nil
		}
	}
	cache, err := build.Open("", progress)
	if err != nil {
		return "", err
	}
	defer cache.Close()
	boot, err := cache.Testbed(ctx)
	return boot.Kernel, err
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
