package command

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"
)

// logFlags are what a process logs, and how.
type logFlags struct{ level, format string }

func (l *logFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&l.level, "log-level", "info", "the least that is logged: debug, info, warn or error")
	f.StringVar(&l.format, "log-format", "text", "of a line of the log: text or json")
}

// open returns a logger that writes to w.
func (l *logFlags) open(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: there are debug, info, warn and error", l.level)
	}
	options := &slog.HandlerOptions{Level: level}
	switch l.format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, fmt.Errorf("--log-format %q: there are text and json", l.format)
}
