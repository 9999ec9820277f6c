package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest/lines"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

const (
	searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// How long to wait for output that the runtime's own children still hold open.
	lastWords = 2 * time.Second
)

// A program is the running runtime.
type program struct {
	name   string
	pid    int
	exited chan struct{}
	status unix.WaitStatus
	output sync.WaitGroup
}

// startRuntime starts the configured command; each line it writes goes to the host.
func startRuntime(config *wire.Config, h *host) (*program, error) {
	if len(config.Command) == 0 {
		return nil, errors.New("the host named no command to run")
	}
	env := environment(config)
	path, err := lookPath(config.Command[0], env)
	if err != nil {
		return nil, err
	}
	p := &program{name: config.Command[0], exited: make(chan struct{})}
	null, err := os.Open("/dev/null")
	if err != nil {
		return nil, err
	}
	defer null.Close()
	files := []uintptr{null.Fd()}
	for _, stream := range []string{"stdout", "stderr"} {
		writer, err := p.capture(stream, config, h)
		if err != nil {
			return nil, err
		}
		defer writer.Close()
		files = append(files, writer.Fd())
	}
	dir := config.Dir
	if dir == "" {
		dir = "/"
	}
	p.pid, err = syscall.ForkExec(path, config.Command, &syscall.ProcAttr{
		Dir: dir, Env: env, Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true,
			Credential: &syscall.Credential{Uid: config.UID, Gid: config.GID}},
	})
	if err != nil {
		return nil, fmt.Errorf("the runtime %s does not start (in %s, as uid %d): %w", path, dir,
			config.UID, err)
	}
	go p.reap()
	return p, nil
}

// capture returns the writing end of a pipe whose lines go to the host.
func (p *program) capture(stream string, config *wire.Config, h *host) (*os.File, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// A runtime that opens /dev/stdout opens the pipe anew, which only its owner may.
	if err := writer.Chown(int(config.UID), int(config.GID)); err != nil {
		return nil, err
	}
	p.output.Go(func() {
		defer reader.Close()
		lines.Split(reader, config.Mark, func(text string) { h.log(stream, text) })
	})
	return writer, nil
}

// reap waits for every process that ends, the runtime and the orphans that process 1 inherits.
func (p *program) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return // no child is left
		case pid == p.pid:
			p.status = status
			close(p.exited)
		}
	}
}

// accepts waits until the runtime accepts connections. Nothing announces that a socket listens.
func (p *program) accepts(port int, within time.Duration) error {
	begin := time.Now()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	for {
		conn, err := dialInside(port)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-time.After(untilAgain(time.Since(begin))):
		case <-p.exited:
			return p.wait()
		case <-deadline.C:
			return fmt.Errorf("the runtime %s does not accept on 127.0.0.1:%d within %v: %w",
				p.name, port, within, err)
		}
	}
}

// untilAgain returns when to try again after so long a wait. Whoever waits is late by 2 ms or a
// fiftieth, and takes little of a processor that other guests compute on.
func untilAgain(waited time.Duration) time.Duration {
	return max(2*time.Millisecond, waited/50)
}

// wait returns, as an error, how the runtime ended, after its last output has gone to the host.
func (p *program) wait() error {
	<-p.exited
	said := make(chan struct{})
	go func() { p.output.Wait(); close(said) }()
	select {
	case <-said:
	case <-time.After(lastWords):
	}
	if p.status.Signaled() {
		return fmt.Errorf("the runtime %s was killed by %v", p.name, p.status.Signal())
	}
	return fmt.Errorf("the runtime %s ended with status %d", p.name, p.status.ExitStatus())
}

// environment returns the variables that every process expects, overridden by those that the host
// sends.
func environment(config *wire.Config) []string {
	all := map[string]string{"PATH": searchPath, "HOME": "/", "HOSTNAME": config.Hostname}
	if config.UID == 0 {
		all["HOME"] = "/root"
	}
	for name, value := range config.Env {
		all[name] = value
	}
	env := make([]string, 0, len(all))
	for name, value := range all {
		env = append(env, name+"="+value)
	}
	return env
}

// lookPath finds a command in env's PATH.
func lookPath(command string, env []string) (string, error) {
	if strings.Contains(command, "/") {
		return command, nil
	}
	for _, variable := range env {
		path, ok := strings.CutPrefix(variable, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range strings.Split(path, ":") {
			file := dir + "/" + command
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() &&
				info.Mode()&0o111 != 0 {
				return file, nil
			}
		}
	}
	return "", fmt.Errorf("the image has no command %q", command)
}
