package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Shell runs a login shell on the caller's terminal and returns its exit code.
func (h *Host) Shell(ctx context.Context) (int, error) {
	tty := int(os.Stdin.Fd())
	if !term.IsTerminal(tty) {
		return 0, errors.New("standard input is no terminal: use `fastiov testbed run CMD`")
	}
	s, err := h.client.NewSession()
	if err != nil {
		return 0, fmt.Errorf("testbed host: %w", err)
	}
	defer s.Close()
	width, height, err := term.GetSize(tty)
	if err != nil {
		return 0, err
	}
	if err := s.RequestPty(terminalType(), height, width, ssh.TerminalModes{}); err != nil {
		return 0, err
	}
	s.Stdout, s.Stderr = os.Stdout, os.Stderr
	if err := feed(s, os.Stdin); err != nil {
		return 0, err
	}
	before, err := term.MakeRaw(tty)
	if err != nil {
		return 0, err
	}
	defer func() { _ = term.Restore(tty, before) }()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, unix.SIGWINCH)
	defer signal.Stop(resized)
	if err := s.Start("cd /share; PATH=/share:$PATH exec bash -i"); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Wait() }()
	for {
		select {
		case err := <-ended:
			return exitCode(err)
		case <-resized:
			if width, height, err := term.GetSize(tty); err == nil {
				_ = s.WindowChange(height, width)
			}
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

func terminalType() string {
	if t := os.Getenv("TERM"); t != "" {
		return t
	}
	return "xterm"
}
