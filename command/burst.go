package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/bench/scraper"
	"github.com/fastiov/fastiov/functions"
	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/invoker/telemetry"
)

// burstCmd fires bursts at the invoker of this machine, or of the testbed.
func burstCmd() *cobra.Command {
	var (
		b        bench.Burst
		asJSON   bool
		listen   string
		stateDir string
		sandbox  string
		by       string
		image    string
		simStart time.Duration
	)
	cmd := &cobra.Command{Use: "burst",
		Short: "Cold-start N functions at once, a number of rounds, and show where the time went",
		Args:  cobra.NoArgs}
	runDir := ofNode(cmd)
	f := cmd.Flags()
	f.IntVar(&b.N, "n", 7, "invocations at once")
	f.IntVar(&b.Rounds, "rounds", 1, "how many times")
	f.IntVar(&b.Memory, "memory", 256, "MiB per function")
	f.StringVar(&b.Kind, "kind", "python:3", "runtime: python:3 or nodejs:18")
	f.StringVar(&by, "api", telemetry.OpenWhisk, "as what functions are called: "+
		strings.Join(telemetry.APIs, " or "))
	f.StringVar(&image, "image", "",
		"the container image of the functions (default: a runtime of --kind)")
	f.StringVar(&listen, "listen", "",
		"the invoker's listen address (default: that of `fastiov up`)")
	f.StringVar(&stateDir, "state-dir", usualStateDir, "where the invoker keeps its API key")
	f.StringVar(&sandbox, "sandbox", "",
		"sim: fire at a node of its own with simulated stage times, and hold the result against them (default: the node that runs here)")
	f.DurationVar(&simStart, "sim-start", paperStart,
		"with --sandbox sim: how long a simulated start takes (default: as in the FastIOV paper, 200 at once on stock software)")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if b.N < 1 || b.Rounds < 1 {
			return errors.New("--n and --rounds want 1 or more")
		}
		if !slices.Contains(telemetry.APIs, by) {
			return fmt.Errorf("--api %q: want %s", by, strings.Join(telemetry.APIs, " or "))
		}
		b.Services = by == telemetry.Knative
		if image != "" {
			b.Images = []string{image}
		}
		b.Name, b.Out = "burst", cmd.ErrOrStderr()
		switch over, err := driverNamed(sandbox); {
		case sandbox == "":
			if away, err := inTestbed(cmd.Context(), *runDir); away {
				return err
			}
			node, hangUp, err := dialNode(*runDir)
			if err != nil {
				return err
			}
			defer hangUp()
			served := []string{listen}
			if listen == "" {
				if served, err = readListen(*runDir); err != nil {
					return err
				}
				listen = served[0]
			}
			key, err := openwhisk.LoadKey(listen, keyFile(stateDir), served[1:]...)
			if err != nil {
				return err
			}
			b.URL, b.Key, b.Node = "http://"+listen, key.String(), node
		case err == nil && over.programmed != nil:
			end, err := simulate(cmd.Context(), &b, over, simStart)
			if err != nil {
				return err
			}
			defer end()
		default:
			return fmt.Errorf(
				"--sandbox %q: a burst makes a node of its own for sim only; start others by `fastiov up`",
				sandbox)
		}
		b.Code = functions.HelloPython
		if strings.HasPrefix(b.Kind, "nodejs") {
			b.Code = functions.HelloNode
		}
		result, err := b.Run(cmd.Context())
		if err != nil {
			return err
		}
		err = show(cmd, result, asJSON)
		if err == nil && (result.Answered+result.Refused < result.Requested || result.Leaked > 0) {
			return fmt.Errorf("%d of %d not answered, %d leaked",
				result.Requested-result.Answered-result.Refused, result.Requested, result.Leaked)
		}
		if err == nil && !result.AsTold() {
			err = errors.New(
				"the stages took longer than sim was told; is the machine busy with something else?")
		}
		return err
	}
	return cmd
}

// paperStart is the average start of 200 at once on stock software in the FastIOV paper, whose
// shares sim.Table1 has.
const paperStart = 16200 * time.Millisecond

// simulate aims a burst at an invoker and an agent of its own, over sandboxes that take the paper's
// shares of total, with a Prometheus that scrapes them where there is one on PATH.
func simulate(
	ctx context.Context, b *bench.Burst, over *driver, total time.Duration,
) (end func(), err error) {
	dir, err := os.MkdirTemp("", "fastiov-burst-")
	if err != nil {
		return nil, err
	}
	opened := closers{func() { os.RemoveAll(dir) }}
	defer func() {
		if err != nil {
			opened.close()
		}
	}()
	var n nodeFlags
	var i invokerFlags
	words := &cobra.Command{}
	n.register(words)
	i.register(words)
	n.runDir, n.stateDir, n.sandbox, n.simStart = dir, dir, over, total
	if n.metrics, err = bench.FreeAddress(); err != nil {
		return nil, err
	}
	own, err := openOwn(ctx, &n, &i, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	opened.onClose(own.close)
	if _, missing := exec.LookPath("prometheus"); missing != nil {
		fmt.Fprintln(b.Out,
			"burst  no prometheus on PATH: what one would see is not held against sim; install the package prometheus")
	} else {
		var stop func()
		if b.Scraped, stop, err = scraper.EverySecond(ctx, n.metrics, dir); err != nil {
			return nil, err
		}
		opened.onClose(stop)
	}
	own.aim(b)
	b.Sim = over.programmed(total)
	return opened.close, nil
}
