package command

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/fastiov/fastiov/command/settings"
)

// A reload has a process that runs follow its configuration, when it is sent SIGHUP.
type reload struct {
	cmd  *cobra.Command
	logs *logFlags
	log  *slog.Logger
}

func newReload(cmd *cobra.Command, logs *logFlags, log *slog.Logger) *reload {
	return &reload{cmd, logs, log}
}

// onHangup reads the configuration again whenever SIGHUP comes, until ctx ends, and then calls
// also. SIGHUP still ends a process on a terminal, because the terminal has gone.
func (r *reload) onHangup(ctx context.Context, also ...func() error) {
	if term.IsTerminal(int(os.Stdin.Fd())) {
		return
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, unix.SIGHUP)
	go func() {
		defer signal.Stop(hangups)
		for {
			select {
			case <-hangups:
				r.again(os.Args[1:], also)
			case <-ctx.Done():
				return
			}
		}
	}()
}

// again loads what a command with these arguments would load now. Where that has a mistake, nothing
// changes.
func (r *reload) again(args []string, also []func() error) {
	stale, err := r.read(args)
	if err != nil {
		r.log.Error("the configuration was not reloaded", "err", err)
		return
	}
	r.logs.apply()
	var failed error
	for _, follow := range also {
		failed = errors.Join(failed, follow())
	}
	if failed != nil {
		r.log.Error("the configuration was reloaded in part", "err", failed)
	} else {
		r.log.Info("the configuration was reloaded")
	}
	for _, key := range stale {
		r.log.Warn("this key has changed, and needs a restart", "key", key)
	}
}

func (r *reload) read(args []string) (stale []string, err error) {
	fresh, rest, err := rootCmd().Find(args)
	if err == nil {
		err = fresh.ParseFlags(rest)
	}
	if err == nil {
		err = settings.Load(fresh, keys())
	}
	if err != nil {
		return nil, err
	}
	return settings.Changed(r.cmd, fresh)
}
