package command

import (
	"cmp"
	"context"
	"encoding/json"
	"os"

	"golang.org/x/sys/unix"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/node-agent/doctor"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/build"
)

func doctorCmd() *cobra.Command {
	var asJSON bool
	var images string
	cmd := &cobra.Command{Use: "doctor",
		Short: "Tell whether this machine can be a node, and if not, why", Args: cobra.NoArgs}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&images, "images", "",
		"look at a node that gets this directory of images, made by `fastiov image export`,"+
			" and makes none itself")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cache, err := build.Open("", cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		defer cache.Close()
		var report doctor.Report
		if images == "" {
			report = examine(cmd.Context(), cache)
		} else if report, err = examineWith(cmd.Context(), images); err != nil {
			return err
		}
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
	kernel := func(ctx context.Context) (string, error) {
		if own := ownKernel(); own != "" {
			return own, nil
		}
		boot, err := cache.Testbed(ctx)
		return boot.Kernel, err
	}
	return doctor.Check(ctx, kernel, cache.QEMU)
}

// examineWith checks this machine with a set of images, and makes nothing.
func examineWith(ctx context.Context, images string) (doctor.Report, error) {
	set, err := image.OpenSet(images)
	if err != nil {
		return doctor.Report{}, err
	}
	kernel := func(context.Context) (string, error) {
		return cmp.Or(ownKernel(), set.Guest.Kernel), nil
	}
	return doctor.Check(ctx, kernel, set.QEMU), nil
}

// ownKernel returns the kernel that this machine runs, or "" where that is not on disk.
func ownKernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		if own := "/boot/vmlinuz-" + unix.ByteSliceToString(u.Release[:]); fileExists(own) {
			return own
		}
	}
	return ""
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
