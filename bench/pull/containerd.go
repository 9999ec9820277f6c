package pull

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Containerd pulls with a containerd of its own, by its ctr.
type Containerd struct {
	Dir         string   // of the two programs
	Path        []string // folders of programs that it may find before the machine's
	Config      string   // what its configuration has besides
	Snapshotter string
	Flags       []string // of ctr image pull

	dir string
	cpu int
	cmd *exec.Cmd
	log bytes.Buffer
}

const startWithin = 20 * time.Second

// Start implements Receiver.
func (c *Containerd) Start(ctx context.Context, dir string, cpus int) error {
	c.dir, c.cpu = dir, cpus
	config := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(config, []byte(c.Config), 0o644); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, "tmp"), 0o755); err != nil {
		return err
	}
	c.cmd = on(cpus, exec.CommandContext(ctx, filepath.Join(c.Dir, "containerd"),
		"--config", config, "--root", filepath.Join(dir, "root"),
		"--state", filepath.Join(dir, "state"), "--address", c.socket()))
	c.cmd.Stdout, c.cmd.Stderr = &c.log, &c.log
	c.cmd.Env = c.environ()
	if err := c.cmd.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(startWithin); ; {
		err := c.ctr(ctx, "version").Run()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("containerd does not answer: %w: %s", err, c.log.String())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (c *Containerd) socket() string { return filepath.Join(c.dir, "containerd.sock") }

func (c *Containerd) environ() []string {
	path := strings.Join(append(c.Path, os.Getenv("PATH")), string(filepath.ListSeparator))
	return append(os.Environ(), "PATH="+path, "TMPDIR="+filepath.Join(c.dir, "tmp"))
}

func (c *Containerd) ctr(ctx context.Context, args ...string) *exec.Cmd {
	cmd := on(c.cpu, exec.CommandContext(ctx, filepath.Join(c.Dir, "ctr"),
		append([]string{"--address", c.socket()}, args...)...))
	cmd.Env = c.environ()
	return cmd
}

// Pull implements Receiver.
func (c *Containerd) Pull(ctx context.Context, ref string) (p Pulled, err error) {
	args := append([]string{"images", "pull", "--plain-http", "--snapshotter", c.Snapshotter},
		c.Flags...)
	cmd := c.ctr(ctx, append(args, ref)...)
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	p.Took = time.Since(begin)
	if err != nil {
		return p, fmt.Errorf("ctr %s: %w: %s", ref, err, out[max(0, len(out)-500):])
	}
	p.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return p, c.has(ctx, ref)
}

// has returns an error unless containerd has all of the image, and a snapshot of it.
func (c *Containerd) has(ctx context.Context, ref string) error {
	out, err := c.ctr(ctx, "images", "check", "--snapshotter", c.Snapshotter, "name=="+ref).
		CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	whole := strings.Fields(lines[len(lines)-1])
	if err != nil || len(whole) < 4 || whole[0] != ref || !slices.Contains(whole, "complete") ||
		whole[len(whole)-1] != "true" {
		return fmt.Errorf("containerd has not unpacked %s: %v: %s", ref, err, out)
	}
	return nil
}

// Process implements Receiver.
func (c *Containerd) Process() int { return c.cmd.Process.Pid }

// Stop implements Receiver.
func (c *Containerd) Stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	_ = c.cmd.Wait()
}
