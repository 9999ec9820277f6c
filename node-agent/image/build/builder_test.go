package build

import (
	"context"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/node-agent/image"
)

// asBuilder makes the test binary a builder that runs for long.
const asBuilder = "FASTIOV_TEST_AS_BUILDER"

func TestMain(m *testing.M) {
	if os.Getenv(asBuilder) != "" {
		sleep := command(context.Background(), "sh", "-c", "echo begun; exec sleep 60")
		sleep.Stdout = os.Stdout
		_ = sleep.Run()
		return
	}
	leaks.Main(m)
}

// TestWhatABuilderStartsEndsWithIt, also where the builder is killed.
func TestWhatABuilderStartsEndsWithIt(t *testing.T) {
	said, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	self := exec.Command("/proc/self/exe")
	self.Env, self.Stdout = append(os.Environ(), asBuilder+"=1"), out
	if err := self.Start(); err != nil {
		t.Fatal(err)
	}
	out.Close()
	_ = said.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := said.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	_ = self.Process.Kill()
	_ = self.Wait()
	if _, err := said.Read(make([]byte, 16)); err != io.EOF { // its end has closed the pipe
		t.Errorf("what it started is still there: %v", err)
	}
}

func open(t *testing.T, dir string) *Builder {
	t.Helper()
	b, err := Open(dir, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// TestThereIsARecipeForEachRuntime that a node takes for one that is made, and for no other.
func TestThereIsARecipeForEachRuntime(t *testing.T) {
	if got := slices.Sorted(maps.Keys(recipes)); !slices.Equal(got, image.Made()) {
		t.Errorf("there are recipes for %q, and a node has %q made", got, image.Made())
	}
	if _, err := open(t, t.TempDir()).Build(t.Context(), "team/x:1"); err == nil {
		t.Error("a thing without a recipe is built")
	}
}
