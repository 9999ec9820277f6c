package command

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/build"
)

func imageCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "image", Short: "The guest's and the runtimes' images"}
	cmd.AddCommand(imagePull(), imageLoad(), imageLs(), imageRm(), imagePrune(), imagePin(),
		imageBuild(), imageExport(), imageKernel())
	return cmd
}

// builder returns the command by which an agent has a thing built: imageBuild without its thing.
func builder() ([]string, error) {
	self, err := os.Executable()
	return []string{self, "image", "build", "--json", "--no-install"}, err
}

func imageBuild() *cobra.Command {
	var asJSON, noInstall bool
	cmd := &cobra.Command{
		Use: "build THING",
		Short: "Make what a node boots, if the cache lacks it: " +
			strings.Join(build.Things(), ", "),
		Args:      cobra.ExactArgs(1),
		ValidArgs: build.Things(),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&noInstall, "no-install", false,
		"do not have apt install what a kernel is built with, but say what is missing")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		b, err := build.Open("", cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		defer b.Close()
		b.NoInstall = noInstall
		var built image.Built
		b.Fetched = func(_ string, bytes int64) { built.Fetched += bytes }
		if built.Dir, err = b.Build(cmd.Context(), args[0]); err != nil {
			return err
		}
		if asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(built)
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), built.Dir)
		return err
	}
	return cmd
}

func imageExport() *cobra.Command {
	var registries registryFlags
	var kernel string
	cmd := &cobra.Command{
		Use: "export DIR [RUNTIME|qemu...]",
		Short: "Make the guest and runtimes (default: qemu and all built-in ones; an OCI reference is pulled) " +
			"and put them into DIR, for `fastiov up --images` elsewhere",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cache, err := build.Open("", cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer cache.Close()
			if err := registries.apply(cache.Cache); err != nil {
				return err
			}
			names := args[1:]
			if len(names) == 0 {
				names = append(image.Made(), hypervisor.Thing)
			}
			if err := cache.Export(cmd.Context(), args[0], kernel, names...); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "exported to %s: the guest, %v\n", args[0], names)
			return nil
		},
	}
	cmd.Flags().Var(guestKernel(&kernel), "guest-kernel", guestKernelHelp)
	registries.flags(cmd.Flags())
	return cmd
}

// imageKernel makes what `fastiov up --kernel patched` would make first.
func imageKernel() *cobra.Command {
	return &cobra.Command{
		Use:   "kernel",
		Short: "Build fastiov's kernel for the testbed; apt installs what it is built with",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cache, err := build.Open("", cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer cache.Close()
			patched, err := cache.Patched(cmd.Context(), build.Plain)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), patched.Kernel)
			return nil
		},
	}
}
