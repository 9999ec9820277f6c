package open

import (
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/invoker/store/embedded"
	"github.com/fastiov/fastiov/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func TestStore(t *testing.T) {
	s, err := Store(t.Context(), filepath.Join(t.TempDir(), "store"), 1<<20,
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, isFile := s.(*embedded.Store); !isFile {
		t.Errorf("a path opened %T", s)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for where, want := range map[string]string{
		"":                    "no store is named",
		"mysql://host":        "not mysql://",
		"/nowhere/store":      "no such file or directory",
		"unix:///nowhere":     "store redis /nowhere: ",
		"redis://127.0.0.1:1": "store redis 127.0.0.1:1: ",
	} {
		s, err := Store(t.Context(), where, 1<<20, slog.New(slog.DiscardHandler))
		if s != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, want %q", where, s, err, want)
		}
	}
}
