package build

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/fastiov/fastiov"
)

const k6Module = "go.k6.io/k6"

// K6 returns the path of the load generator k6, in the version that versions.yaml names. It builds
// the program if the cache does not have it.
func (b *Builder) K6(ctx context.Context) (program string, err error) {
	dir, err := b.Get(ctx, "k6", k6Inputs(), buildK6)
	return filepath.Join(dir, "k6"), err
}

// HasK6 returns the program if it has been built.
func (b *Builder) HasK6(ctx context.Context) (program string, built bool) {
	dir, built := b.Has(ctx, "k6", k6Inputs())
	return filepath.Join(dir, "k6"), built
}

func k6Inputs() []string {
	var v struct{ K6 string }
	if err := yaml.Unmarshal(fastiov.VersionsYAML, &v); err != nil {
		panic("versions.yaml: " + err.Error())
	}
	return []string{k6Module + "@" + v.K6, runtime.GOARCH}
}

// buildK6 has Go fetch and compile the module: some 900 packages, each of which it names as it
// goes.
func buildK6(ctx context.Context, dir string, say func(string, ...any)) error {
	module := k6Inputs()[0]
	say("fetching %s and what it needs", module)
	cmd := command(ctx, "go", "install", "-v", "-trimpath", module)
	cmd.Dir = dir // in no module: versions are the module's own
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0", "GOTOOLCHAIN=auto")
	said, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); errors.Is(err, exec.ErrNotFound) {
		return errors.New("go is missing, which builds it; install Go, or put its folder on PATH")
	} else if err != nil {
		return err
	}
	compiled, last := 0, ""
	for lines := bufio.NewScanner(said); lines.Scan(); {
		last = lines.Text()
		if !strings.Contains(last, " ") { // a package; Go's other messages are sentences
			if compiled++; compiled%100 == 0 {
				say("compiling, %d packages so far", compiled)
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("building %s: %w: %s", module, err, last)
	}
	return nil
}
