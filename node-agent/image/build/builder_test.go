package build

import (
	"context"
	"io"
	"maps"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/fastiov/fastiov/node-agent/image"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, dir string) *Builder {
	t.Helper()
	b, err := Open(dir, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

type builder = func(ctx context.Context, dir string, say func(string, ...any)) error

// TestThereIsARecipeForEachRuntime that a node takes for one that is made, and for no other.
func TestThereIsARecipeForEachRuntime(t *testing.T) {
	if got := slices.Sorted(maps.Keys(recipes)); !slices.Equal(got, image.Made()) {
		t.Errorf("there are recipes for %q, and a node has %q made", got, image.Made())
	}
	if _, err := open(t, t.TempDir()).Build(t.Context(), "team/x:1"); err == nil {
		t.Error("a thing without a recipe is built")
	}
}
