package testbed

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// A Host is a booted testbed host and a connection to it.
type Host struct {
	dir
	rec    record
	client *ssh.Client
	ended  <-chan struct{} // closed when QEMU has ended; nil if another process started it
	tests  bool            // the test binary was copied there
}

// Config returns the configuration with which the host was booted.
func (h *Host) Config() Config { return h.rec.Config }

// Close ends the connection. The host stays up.
func (h *Host) Close() {
	if h.client != nil {
		h.client.Close()
	}
}

// Dial connects to addr from inside the host.
func (h *Host) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return h.client.DialContext(ctx, network, addr)
}

const dialTime = 30 * time.Second

// dial connects to the host's sshd. It accepts any host key the first time, and later only the same
// one.
func (h *Host) dial(ctx context.Context) error {
	if h.client != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	raw, err := os.ReadFile(h.key())
	if err != nil {
		return err
	}
	signer, err := ssh.ParsePrivateKey(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", h.key(), err)
	}
	config := &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: h.checkKey,
	}
	addr := fmt.Sprintf("127.0.0.1:%d", h.rec.SSHPort)
	con, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { con.Close() })
	c, channels, requests, err := ssh.NewClientConn(con, addr, config)
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		con.Close()
		return fmt.Errorf("ssh: %w", err)
	}
	h.client = ssh.NewClient(c, channels, requests)
	return nil
}

func (h *Host) checkKey(_ string, _ net.Addr, key ssh.PublicKey) error {
	if len(h.rec.HostKey) == 0 {
		h.rec.HostKey = key.Marshal()
	}
	if !bytes.Equal(h.rec.HostKey, key.Marshal()) {
		return errors.New("what listens on the testbed's port is not the testbed")
	}
	return nil
}

// makeKey makes the key pair that opens a host.
func makeKey(private, authorized string) error {
	public, secret, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(secret, "fastiov testbed")
	if err != nil {
		return err
	}
	line, err := ssh.NewPublicKey(public)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(private, pem.EncodeToMemory(block), 0o600),
		os.WriteFile(authorized, ssh.MarshalAuthorizedKey(line), 0o600))
}

// killTime bounds the end of a cancelled command.
const killTime = 5 * time.Second

// Run runs a shell command in the host's /share and returns its exit code. When ctx ends, it ends
// the command and all of its process group. stdin may be nil; stdout and stderr may be the same.
func (h *Host) Run(
	ctx context.Context, command string, stdin io.Reader, stdout, stderr io.Writer,
) (int, error) {
	s, err := h.client.NewSession()
	if err != nil {
		return 0, fmt.Errorf("testbed host: %w", err)
	}
	defer s.Close()
	start := "echo $$ >&2; cd /share; PATH=/share:$PATH; "
	if stdout == stderr {
		start += "exec 2>&1; " // in the order of the writes, and with one writer here
		stderr = io.Discard
	}
	s.Stdout = stdout
	errPipe, err := s.StderrPipe()
	if err != nil {
		return 0, err
	}
	if err := feed(s, stdin); err != nil {
		return 0, err
	}
	// The shell writes its pid, which is also its process group, to the first line of stderr.
	if err := s.Start(start + command); err != nil {
		return 0, fmt.Errorf("testbed host: %w", err)
	}
	said := bufio.NewReader(errPipe)
	group, err := said.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("testbed host: the command's shell did not start: %w", err)
	}
	ended := make(chan error, 1)
	go func() {
		_, _ = io.Copy(stderr, said)
		ended <- s.Wait()
	}()
	select {
	case err := <-ended:
		return exitCode(err)
	case <-ctx.Done():
	}
	h.kill(strings.TrimSpace(group), ended)
	return 0, context.Cause(ctx)
}

// feed connects stdin so that the end of the command does not wait for the end of its input.
func feed(s *ssh.Session, stdin io.Reader) error {
	if stdin == nil {
		return nil
	}
	in, err := s.StdinPipe()
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(in, stdin)
		in.Close()
	}()
	return nil
}

// kill ends a process group of the host and waits until its session has ended.
func (h *Host) kill(group string, ended <-chan error) {
	for _, signal := range []string{"TERM", "KILL"} {
		if h.fire("kill -"+signal+" -"+group) != nil {
			return
		}
		t := time.NewTimer(killTime)
		select {
		case <-ended:
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// fire starts a command and does not wait for it.
func (h *Host) fire(command string) error {
	s, err := h.client.NewSession()
	if err != nil {
		return err
	}
	return s.Start(command)
}

func exitCode(err error) (int, error) {
	var exit *ssh.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit) && exit.Signal() != "":
		return 128 + signals[exit.Signal()], nil
	case errors.As(err, &exit):
		return exit.ExitStatus(), nil
	}
	return 0, fmt.Errorf("testbed host: the connection was lost: %w", err)
}

// signals maps the names of ssh's signals to their numbers.
var signals = map[string]int{"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8,
	"KILL": 9, "USR1": 10, "SEGV": 11, "USR2": 12,
	"PIPE": 13, "ALRM": 14, "TERM": 15}
