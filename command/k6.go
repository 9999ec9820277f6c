package command

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/node-agent/image/build"
	"github.com/fastiov/fastiov/testbed"
)

// k6Cmd becomes k6. Its arguments are k6's own.
func k6Cmd() *cobra.Command {
	return &cobra.Command{
		Use:                "k6 [ARG...]",
		Short:              "Run k6, the load generator, told where the fastiov that runs here is; see load/",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			shoots := len(args) > 0 && args[0] == "run"
			if shoots && (os.Getenv("APIHOST") == "" || os.Getenv("AUTH") == "") {
				url, key, err := whatRunsHere(cmd.Context())
				if err != nil {
					return err
				}
				os.Setenv("APIHOST", url)
				os.Setenv("AUTH", key)
			}
			if os.Getenv("K6_NO_USAGE_REPORT") == "" {
				os.Setenv("K6_NO_USAGE_REPORT", "true") // a user who wants to be counted says so
			}
			cache, err := build.Open("", cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			k6, err := cache.K6(cmd.Context())
			if err != nil {
				return err
			}
			return unix.Exec(k6, append([]string{"k6"}, args...), os.Environ())
		},
	}
}

// whatRunsHere returns the URL of the API of the node on this machine, or of that in the testbed,
// and a key for it.
func whatRunsHere(ctx context.Context) (url, key string, err error) {
	const runDir, stateDir = "/run/fastiov", "/var/lib/fastiov"
	if _, err := os.Stat(filepath.Join(runDir, nodeSocket)); err == nil {
		served, err := readListen(runDir)
		if err != nil {
			return "", "", err
		}
		key, err := openwhisk.LoadKey(served[0], keyFile(stateDir), served[1:]...)
		return "http://" + served[0], key.String(), err
	}
	key, err = keyInTestbed(ctx)
	return awayURL, key, err
}

// keyInTestbed returns the key of the invoker in the testbed.
func keyInTestbed(ctx context.Context) (string, error) {
	host, err := testbed.Open(ctx, awayName)
	if err != nil {
		return "", fmt.Errorf(
			"no fastiov runs here; start one with `fastiov up`, or set APIHOST and AUTH as in ~/.wskprops")
	}
	defer host.Close()
	var out strings.Builder
	if code, err := host.Run(ctx,
		testbed.Quote("cat", awayKey), nil, &out, os.Stderr); err != nil || code != 0 {
		return "", fmt.Errorf(
			"the testbed has no key of an invoker (exit code %d, %v); run `fastiov up`", code, err)
	}
	return strings.TrimSpace(out.String()), nil
}
