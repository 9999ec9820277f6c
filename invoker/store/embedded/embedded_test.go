package embedded

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
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

// Promises do not wait for the code of all neighbours, wherever they stand in line.
func TestATransactionHasOneLargeCode(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	leave()
	s := &Store{wakes: make(chan struct{}, 1)}
	wait := func(ctx context.Context, code int) {
		s.calls = append(s.calls, &call{ctx: ctx, code: code})
	}
	for _, code := range []int{0, large, 0, large / 2, 5 * large, large / 2, large / 2, 0} {
		wait(t.Context(), code)
	}
	wait(gone, large) // writes nothing
	var took [][]int
	for s.waits() {
		var codes []int
		for _, c := range s.take() {
			codes = append(codes, c.code)
		}
		took = append(took, codes)
		if s.waits() != (len(s.wakes) == 1) {
			t.Errorf("after %v the writer is not woken", took)
		}
		select {
		case <-s.wakes:
		default:
		}
	}
	want := [][]int{{0, large, 0, 0, large}, {large / 2, large / 2}, {5 * large}, {large / 2}}
	if !reflect.DeepEqual(took, want) {
		t.Errorf("transactions of %v, want %v", took, want)
	}
}
