package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/node-agent/image"
)

func imageCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "image", Short: "The guest's and the runtimes' images"}
	cmd.AddCommand(imageExport(), imageKernel())
	return cmd
}

func imageExport() *cobra.Command {
	var registries registryFlags
	cmd := &cobra.Command{
		Use:   "export DIR [RUNTIME...]",
		Short: "Make the guest and runtimes (default: all built-in ones; an OCI reference is pulled) and put them into DIR, for `fastiov up --images` elsewhere",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cache, err := image.Open("", cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer cache.Close()
			if err := registries.apply(cache); err != nil {
				return err
			}
			runtimes := args[1:]
			if len(runtimes) == 0 {
				runtimes = image.RuntimeNames()
			}
			if err := cache.Export(cmd.Context(), args[0], runtimes...); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "exported to %s: the guest, %v\n", args[0], runtimes)
			return nil
		},
	}
	registries.register(cmd)
	return cmd
}

// imageKernel makes what `fastiov up --kernel patched` would make first.
func imageKernel() *cobra.Command {
	return &cobra.Command{
		Use:   "kernel",
		Short: "Build fastiov's kernel for the testbed; apt installs what it is built with",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cache, err := image.Open("", cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer cache.Close()
			patched, err := cache.Patched(cmd.Context(), false)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), patched.Kernel)
			return nil
		},
	}
}
