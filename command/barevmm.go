package command

import (
	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/node-agent/sandbox/bare"
)

const bareVMM = "bare-vmm"

// bareVMMCmd is the process of a bare sandbox.
func bareVMMCmd() *cobra.Command {
	return &cobra.Command{Use: bareVMM + " ID MEMORY-MIB [GROUP BDF]", Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error { return bare.Main(args) }}
}
