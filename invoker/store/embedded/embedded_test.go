package embedded

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
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

// Promises wait for the code of one neighbour, not for that of all.
func TestATransactionHasOneLargeCode(t *testing.T) {
	s := &Store{wakes: make(chan struct{}, 1)}
	for _, code := range []int{0, large, 0, large - 1, large, large, 0} {
		s.calls = append(s.calls, &call{code: code})
	}
	var took []int
	for s.waits() {
		took = append(took, len(s.take()))
		if s.waits() != (len(s.wakes) == 1) {
			t.Errorf("after %v the writer is not woken", took)
		}
		select {
		case <-s.wakes:
		default:
		}
	}
	if want := []int{2, 3, 1, 1}; !slices.Equal(took, want) {
		t.Errorf("transactions of %v calls, want %v", took, want)
	}
}
