package command

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// detach starts this command again, in the background, and returns when it is ready. Its log goes
// to a file in runDir.
func detach(ctx context.Context, runDir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return err
	}
	logPath := filepath.Join(runDir, "fastiov.log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	start, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	ready, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	cmd := exec.Command(self, append(os.Args[1:len(os.Args):len(os.Args)], "--foreground")...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{theirs}
	cmd.Env = append(os.Environ(), readyFD+"=3")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	if line, _ := bufio.NewReader(ready).ReadString('\n'); line != "" {
		return cmd.Process.Release()
	}
	if err := cmd.Wait(); err == nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.New(lastWords(logPath, start))
}

// lastWords is the last line that a process wrote to its log after start.
func lastWords(path string, start int64) string {
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) <= start {
		return "it ended without a word; see " + path
	}
	lines := strings.Split(strings.TrimSpace(string(b[start:])), "\n")
	return strings.TrimPrefix(lines[len(lines)-1], "fastiov: ")
}
