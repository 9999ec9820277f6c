package embedded

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/storetest"
)

const plenty = 1 << 30

func open(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(path, plenty, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func() func() store.Store {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		return func() store.Store { return open(t, filepath.Join(dir, "store")) }
	})
}
