package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A Checkout is a commit in a worktree of the repository around the working directory.
type Checkout struct {
	Commit string
	dir    string
}

// Build checks a commit out and builds it as that commit's `make build` does, with this user's Go
// cache. Remove deletes the checkout.
func Build(ctx context.Context, commit string, progress io.Writer) (_ *Checkout, err error) {
	git := func(args ...string) (string, error) { return output(ctx, "git", args...) }
	hash, err := git("rev-parse", "--verify", "--quiet", "--end-of-options", commit+"^{commit}")
	if err != nil {
		return nil, fmt.Errorf("no commit %s here (%w); run this in a clone of fastiov",
			commit, err)
	}
	parent, err := os.MkdirTemp("", "fastiov-base-")
	if err != nil {
		return nil, err
	}
	c := &Checkout{Commit: hash, dir: filepath.Join(parent, "fastiov")}
	defer func() {
		if err != nil {
			c.Remove()
		}
	}()
	if _, err := git("worktree", "add", "--quiet", "--detach", c.dir, hash); err != nil {
		return nil, fmt.Errorf("checking out %s: %w", commit, err)
	}
	fmt.Fprintf(progress, "building %s, package by package where Go's cache has it not\n", commit)
	flags, err := output(ctx, "go", "env", "GOFLAGS")
	if err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "make", "--silent", "--directory", c.dir, "build")
	build.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(flags+" -v"), "MAKEFLAGS=")
	build.Stdout, build.Stderr = progress, progress
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("building %s: make build: %w; what it said stands above",
			commit, err)
	}
	return c, nil
}

// Command returns the path of the commit's fastiov.
func (c *Checkout) Command() string { return filepath.Join(c.dir, "bin", "fastiov") }

// Remove deletes the worktree, even if the context that it was made with has ended.
func (c *Checkout) Remove() {
	_ = exec.Command("git", "worktree", "remove", "--force", c.dir).Run()
	_ = os.RemoveAll(filepath.Dir(c.dir))
}

// output runs a command and returns its output without the last newline.
func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	var ended *exec.ExitError
	if errors.As(err, &ended) && len(ended.Stderr) > 0 {
		err = fmt.Errorf("%s: %s", name, lastLine(string(ended.Stderr)))
	}
	return strings.TrimSpace(string(out)), err
}
