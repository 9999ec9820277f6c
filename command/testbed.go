package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/testbed"
)

func testbedCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "testbed",
		Short: "A host with SR-IOV in QEMU: boot it, run commands in it, end it"}
	name := cmd.PersistentFlags().String("name", "default",
		"which testbed; several can be up at once")
	cmd.AddCommand(testbedUp(name), testbedRun(name), testbedShell(name), testbedStatus(name),
		testbedDown(name))
	return cmd
}

func testbedUp(name *string) *cobra.Command {
	var c testbed.Config
	cmd := &cobra.Command{Use: "up", Short: "Boot the testbed, or do nothing if it is up",
		Args: cobra.NoArgs}
	f := cmd.Flags()
	f.IntVar(&c.NICs, "nics", 1, "network cards, each with 7 VFs")
	f.IntVar(&c.NVMeVFs, "nvme-vfs", 0, "VFs of an NVMe controller, up to 127")
	f.IntVar(&c.MemoryMiB, "memory", 8192, "memory in MiB")
	f.IntVar(&c.CPUs, "cpus", 0, "CPUs (default: 2 if emulated by qemu-emulator, else 1;"+
		" Debian's QEMU loses hosts that have more)")
	f.StringVar(&c.Kernel, "kernel", testbed.DebianKernel,
		"debian, or fastiov's own, built first if need be: patched, or debug, which finds its own mistakes")
	f.StringVar(&c.Accel, "accel", "", "kvm or tcg (default: kvm where it works and nests)")
	f.BoolVar(&c.Edu, "edu", false, "add four of QEMU's edu devices")
	f.IntSliceVar(&c.Forward, "forward", nil,
		"ports of the testbed to reach at the same port of 127.0.0.1")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c.Name = *name
		began := time.Now()
		host, err := bringUp(cmd, c)
		if err != nil {
			return err
		}
		defer host.Close()
		fmt.Fprintf(cmd.OutOrStdout(), "testbed %s is up after %.1f s (%s)\n", c.Name,
			time.Since(began).Seconds(), host.Config())
		return nil
	}
	return cmd
}

// bringUp boots the testbed that c describes and gives it a copy of this binary as /share/fastiov.
// Where that fails, a testbed that it booted ends: the next command would rely on those programs.
func bringUp(cmd *cobra.Command, c testbed.Config) (*testbed.Host, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	host, err := testbed.Up(cmd.Context(), c, cmd.ErrOrStderr())
	if err != nil {
		return nil, err
	}
	if err := errors.Join(host.Put(cmd.Context(), "fastiov", self),
		host.PutLauncher(cmd.Context())); err != nil {
		// also after an interrupt
		return nil, errors.Join(err,
			host.End(context.WithoutCancel(cmd.Context()), cmd.ErrOrStderr()))
	}
	return host, nil
}

func testbedRun(name *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run CMD [ARG...]",
		Short: "Run a command in the testbed and exit as it does; a single CMD is a line for its shell",
		Args:  cobra.MinimumNArgs(1),
	}
	cmd.Flags().SetInterspersed(false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		host, err := testbed.Open(cmd.Context(), *name)
		if err != nil {
			return err
		}
		line := args[0]
		if len(args) > 1 {
			line = testbed.Quote(args...)
		}
		code, err := host.Run(cmd.Context(), line, os.Stdin, cmd.OutOrStdout(), cmd.ErrOrStderr())
		return exitAs(host, code, err)
	}
	return cmd
}

func testbedShell(name *string) *cobra.Command {
	return &cobra.Command{Use: "shell", Short: "Open a shell in the testbed", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			host, err := testbed.Open(cmd.Context(), *name)
			if err != nil {
				return err
			}
			code, err := host.Shell(cmd.Context())
			return exitAs(host, code, err)
		}}
}

// exitAs ends this process with the exit code of a command that ran in the testbed.
func exitAs(host *testbed.Host, code int, err error) error {
	host.Close()
	if err == nil && code != 0 {
		os.Exit(code)
	}
	return err
}

func testbedStatus(name *string) *cobra.Command {
	return &cobra.Command{Use: "status", Short: "Show whether the testbed is up",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := testbed.Look(*name)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			fmt.Fprintf(out, "testbed %s is %s (%s)\n", *name, s.State, s.Config)
			fmt.Fprintf(out, "  qemu   %s, pid %d, booted in %.1f s\n", s.QEMU, s.PID,
				s.Booted.Seconds())
			fmt.Fprintf(out, "  ssh    ssh -i %s/key -p %d root@127.0.0.1\n", s.Dir, s.SSHPort)
			for _, p := range s.Config.Forward {
				fmt.Fprintf(out, "  port   127.0.0.1:%d\n", p)
			}
			fmt.Fprintf(out, "  /share  %s/share\n", s.Dir)
			return nil
		}}
}

func testbedDown(name *string) *cobra.Command {
	return &cobra.Command{Use: "down", Short: "End the testbed and remove what it left",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := testbed.Down(cmd.Context(), *name, cmd.ErrOrStderr())
			if errors.Is(err, testbed.ErrDown) {
				fmt.Fprintf(cmd.OutOrStdout(), "testbed %s was not up\n", *name)
				return nil
			}
			return err
		}}
}
