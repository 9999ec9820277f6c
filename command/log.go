package command

import (
	"io"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fastiov/fastiov/command/settings"
)

// logFlags hold which lines a process logs, and in which format.
type logFlags struct {
	level, format string
	least         slog.LevelVar
}

func (l *logFlags) register(cmd *cobra.Command) {
	settings.Add(cmd, logSection, func(f *pflag.FlagSet) {
		f.Var(chosen(&l.level, "info", "debug", "warn", "error"), "log-level",
			"the least that is logged: debug, info, warn or error")
		f.Var(chosen(&l.format, "text", "json"), "log-format", "of a line of the log: text or json")
		settings.TakesEffect(f, settings.BySIGHUP, "log-level")
	})
}

// open returns a logger that writes to w.
func (l *logFlags) open(w io.Writer) *slog.Logger {
	l.apply()
	options := &slog.HandlerOptions{Level: &l.least}
	if l.format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// apply has the level hold, also for a logger that is open.
func (l *logFlags) apply() {
	_ = l.least.UnmarshalText([]byte(l.level)) // the flag has checked it
}
