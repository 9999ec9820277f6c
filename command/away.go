package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/doctor"
	"github.com/fastiov/fastiov/node-agent/hypervisor"
	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/build"
	"github.com/fastiov/fastiov/testbed"
)

// On a machine that cannot be a node, the testbed is the node: the same commands then run inside
// it, by the same binary.

// The testbed that `up` boots, and its network as QEMU makes it: the API's ports are reached by its
// management address.
const (
	awayName    = "default"
	awayBinary  = "/share/fastiov"
	awayImages  = "/share/images"
	awayAPI     = "10.0.3.15:3233"
	awayURL     = "http://127.0.0.1:3233"
	awayMetrics = "10.0.3.15:9464"
	awayStorage = "10.0.3.15:3234"
	awayKey     = "/var/lib/fastiov/key"
	awayMachine = "10.0.3.2" // this machine's loopback, as the testbed reaches it
	awayGateway = "10.0.2.2" // and as what is behind its VFs does
)

var (
	awayPorts = []int{3233, 3234, 9464}
	awayFlags = []string{ // that follow from where it is
		"--pf", "igb", "--images", awayImages, "--listen", awayAPI, "--metrics", awayMetrics,
		"--storage", awayStorage, "--api-host", "http://10.0.2.2:3233",
	}
	awayVFs = []string{ // the network behind its VFs, which no bridge can have
		"--subnet", "10.0.2.0/24", "--first-address", "10.0.2.100", "--gateway", awayGateway,
		"--dns", "10.0.2.3",
	}
	awayDefaults = []string{"--boot-deadline", "10m", "--wait", "50s"} // it is slow
)

// inTestbed runs this very command inside the testbed if there is one and no agent runs on this
// machine. away reports whether it did.
func inTestbed(ctx context.Context, runDir string) (away bool, err error) {
	if _, err := os.Stat(filepath.Join(runDir, nodeSocket)); err == nil {
		return false, nil
	}
	if !testbedIsUp() {
		return false, nil
	}
	host, err := testbed.Open(ctx, awayName)
	if err != nil {
		return true, err
	}
	code, err := host.Run(ctx, testbed.Quote(append([]string{awayBinary}, os.Args[1:]...)...),
		os.Stdin, os.Stdout, os.Stderr)
	return true, exitAs(host, code, err)
}

// testbedIsUp reports whether a testbed runs in which there may be a node.
func testbedIsUp() bool {
	s, err := testbed.Look(awayName)
	return err == nil && s.State == "ready"
}

// wordsAway returns the settings of this command, by flags, the environment or the file, as flags
// of the command that replaces it in the testbed.
func wordsAway(cmd *cobra.Command) (words []string, err error) {
	ours := []string{"kernel", "guest-kernel", "config", "store", "store-password-file",
		"state-dir"}
	follow := slices.Concat(awayFlags, awayVFs, []string{"--run-dir"})
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch {
		case !f.Changed || slices.Contains(ours, f.Name):
		case f.Name == "run-dir" && isUsual(f.Value.String()): // as it is there
		case slices.Contains(follow, "--"+f.Name):
			err = fmt.Errorf("--%s follows from where the node is, and here that is a testbed;"+
				" leave it out", f.Name)
		case f.Name == "image-registries":
			for _, word := range wordsOf(f) {
				loopback := "://127.0.0.1:"
				words = append(words, strings.ReplaceAll(word, loopback, "://"+awayMachine+":"))
			}
		default:
			words = append(words, wordsOf(f)...)
		}
	})
	return words, err
}

// upInTestbed brings the testbed up with a node in it, if this machine cannot be one. away reports
// whether it cannot.
func upInTestbed(cmd *cobra.Command, kernel string, n *nodeFlags) (away bool, err error) {
	ctx, progress := cmd.Context(), cmd.ErrOrStderr()
	cache, err := build.Open("", progress)
	if err != nil {
		return true, err
	}
	defer cache.Close()
	var a arm.Arm
	if n.fastiov != "" {
		if a, err = arm.Parse(n.fastiov); err != nil {
			return true, fmt.Errorf("--fastiov: %w", err)
		}
	}
	if isNode(ctx, cache, len(n.pfs) > 0 || n.fastiov != "" && a.ByVFIO(), progress) {
		return false, nil
	}
	words, err := wordsAway(cmd)
	if err != nil {
		return true, err
	}
	host, err := bringUp(cmd, testbed.Config{Name: awayName, Kernel: kernel, NVMeVFs: 64,
		Forward: awayPorts})
	if err != nil {
		return true, err
	}
	defer host.Close()
	if err := fillImages(ctx, host, cache, n.guestKernel, a); err != nil {
		return true, err
	}
	if !a.Tap {
		words = append(words, awayVFs...)
	}
	return true, runInTestbed(ctx, host, words, cmd.OutOrStdout(), progress)
}

// isNode reports whether this machine can be a node, if need be one with VFs. If not, it says why,
// and that a testbed is the node.
func isNode(ctx context.Context, cache *build.Builder, vfs bool, progress io.Writer) bool {
	report := examine(ctx, cache)
	err := report.Err()
	switch has := doctor.HasCard(); {
	case err == nil && vfs && !has:
		err = errors.New("this machine has no network card with SR-IOV")
	case err == nil && !has:
		fmt.Fprintln(progress, "no network card here has SR-IOV,"+
			" so microVMs have taps of a bridge, and no VFs")
	}
	if err != nil {
		fmt.Fprintf(progress, "%v\nso a testbed is the node (`fastiov doctor` says more)\n", err)
	}
	return err == nil
}

// fillImages gives the testbed the images that this machine has built, guests that kernel, and VMMs
// the QEMU that their arms need beside the testbed's own.
func fillImages(ctx context.Context, host *testbed.Host, cache *build.Builder, guest string,
	arms ...arm.Arm) error {
	names := image.Made()
	if slices.ContainsFunc(arms, func(a arm.Arm) bool { return a.Root == arm.Unmapped }) {
		names = append(names, hypervisor.Patched)
	}
	return host.Fill(ctx, "images", func(dir string) error {
		return cache.Export(ctx, dir, guest, names...)
	})
}

// runInTestbed starts a node with its invoker in the testbed and says how to call it. It first ends
// an earlier version that runs there, so that calls reach the one that was just built.
func runInTestbed(ctx context.Context, host *testbed.Host, words []string,
	out, progress io.Writer) error {
	run := func(stdout io.Writer, words ...string) error {
		code, err := host.Run(ctx, testbed.Quote(words...), nil, stdout, progress)
		if err == nil && code != 0 {
			err = fmt.Errorf("%q failed in the testbed (exit code %d)", words[1], code)
		}
		return err
	}
	if err := run(io.Discard, awayBinary, "down"); err != nil {
		return err
	}
	if err := run(io.Discard, slices.Concat([]string{awayBinary, "up"},
		awayFlags, awayDefaults, words)...); err != nil {
		return err
	}
	var key strings.Builder
	if err := run(&key, "cat", awayKey); err != nil {
		return err
	}
	announce(out, awayURL, "http://127.0.0.1:9464", strings.TrimSpace(key.String()))
	fmt.Fprint(out,
		"storage         http://127.0.0.1:3234; functions reach it as http://10.0.2.2:3234\n\n")
	return nil
}

const helloAction = `{"exec":{"kind":"python:3","code":"def main(args): return {\"hello\": args.get(\"name\", \"world\")}"}}`

// announce says where the API is and how to call it.
func announce(out io.Writer, url, metrics, key string) {
	action := url + "/api/v1/namespaces/_/actions/hello"
	curl := "curl -s -u " + key + " -H 'Content-Type: application/json'"
	fmt.Fprintf(out, `
OpenWhisk API   %s
live page       %s/ui
metrics         %s/metrics
wsk             wsk property set --apihost %s --auth %s
deploy          %s -X PUT '%s?overwrite=true' -d '%s'
call            %s -X POST '%s?blocking=true&result=true' -d '{"name":"you"}'

`, url, url, metrics, url, key, curl, action, helloAction, curl, action)
}
