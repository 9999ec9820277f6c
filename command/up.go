package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/invoker/live"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/metrics"
	"github.com/fastiov/fastiov/testbed"
)

// upCmd runs an agent and its invoker: on this machine if it can be a node, else in the testbed.
func upCmd() *cobra.Command {
	var n nodeFlags
	var i invokerFlags
	var logs logFlags
	var foreground bool
	var kernel string
	cmd := &cobra.Command{Use: "up", Short: "Start fastiov here, or in a testbed where this machine cannot be a node", Args: cobra.NoArgs}
	n.register(cmd)
	i.register(cmd)
	logs.register(cmd)
	cmd.Flags().StringVar(&i.user, "invoker-user", "",
		"who the invoker runs as, in a process of its own (default: "+frontUser+"; with sim, the agent's process)")
	cmd.Flags().StringVar(&kernel, "kernel", testbed.DebianKernel, "of the testbed, where one is the node: debian, or patched, fastiov's own, built first if need be")
	cmd.Flags().BoolVar(&foreground, "foreground", false, "stay in the foreground, as a service does")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if i.user == "" && n.sandbox != "sim" {
			i.user = frontUser
		}
		log, err := logs.open(os.Stderr)
		if err != nil {
			return err
		}
		switch {
		case foreground && i.user != "":
			return serveApart(cmd.Context(), cmd, &n, &i, log, os.Stderr)
		case foreground:
			return serveAll(cmd.Context(), &n, &i, log)
		}
		if n.sandbox == "qemu" && n.images == "" {
			if away, err := upInTestbed(cmd, kernel); away {
				return err
			}
		}
		if err := detach(cmd.Context(), n.runDir); err != nil {
			return err
		}
		key, err := i.key(n.stateDir)
		if err != nil {
			return err
		}
		addresses, err := readListen(n.runDir)
		if err == nil {
			announce(cmd.OutOrStdout(), "http://"+addresses[0], "http://"+n.metrics, key.String())
		}
		if err == nil && i.storage != "" {
			fmt.Fprintf(cmd.OutOrStdout(), "storage         http://%s\n\n", i.storage)
		}
		return err
	}
	return cmd
}

// serveAll runs a node and its invoker in this process until ctx ends.
func serveAll(ctx context.Context, n *nodeFlags, i *invokerFlags, log *slog.Logger) error {
	unlock, err := n.lock()
	if err != nil {
		return err
	}
	defer unlock()
	front, err := i.open(ctx, n.runDir, n.stateDir, log)
	if err != nil {
		return err
	}
	defer front.close()
	traces, err := openTraces(ctx)
	if err != nil {
		return err
	}
	defer traces.stop()
	front.cfg.Tracer = traces.tracer
	node, err := openNode(ctx, n, newRegistry(asBoth), log)
	if err != nil {
		return err
	}
	defer node.close()
	stop, err := serveMetrics(n.metrics, nobodyElse, metrics.Page(node.registry), traces.query, node.agent.Ready, log)
	if err != nil {
		return err
	}
	defer stop()
	var agent api.NodeServer = node.agent
	if n.metrics != "" {
		agent = node.agent.Measured()
	}
	client := api.Local(agent)
	front.watched = []live.Named{{Name: "local", Node: client}}
	poolConfig, err := i.pool(n.boot + 2*time.Minute)
	if err != nil {
		return err
	}
	return front.serve(ctx, poolConfig, client, counting(n.metrics, node.registry))
}

// The address at which an invoker serves is noted in the run directory, for the commands that call it.
func listenFile(runDir string) string { return filepath.Join(runDir, "listen") }

func noteListen[L net.Listener](runDir string, listeners ...L) error {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return err
	}
	var addresses []string
	for _, l := range listeners {
		addresses = append(addresses, l.Addr().String())
	}
	return os.WriteFile(listenFile(runDir), []byte(strings.Join(addresses, " ")), 0o644)
}

// readListen is where the API is served: without TLS, and where that is so, with it. The key depends on both.
func readListen(runDir string) ([]string, error) {
	b, err := os.ReadFile(listenFile(runDir))
	if err != nil {
		return nil, fmt.Errorf("no invoker runs here: %w; start one with `fastiov up`, or say where it is with --listen", err)
	}
	return strings.Fields(string(b)), nil
}

// readyFD is inherited by a process that another one waits for; the line "ready" on it says that it is, its end without one that it is not.
const readyFD = "FASTIOV_READY_FD"

// A parent waits for this process; fd is where it listens, or -1 where nobody does (any more).
type parent struct{ fd int }

var waiting = func() *parent {
	if os.Getenv(readyFD) == "" {
		return &parent{-1}
	}
	return &parent{3}
}()

// serves is set once this process serves.
var serves atomic.Bool

// tellParent says how far this process is. After ready it has nothing more to say.
func tellParent(word string) {
	if word == ready {
		serves.Store(true)
		tellManager(daemon.SdNotifyReady, "it serves")
	}
	waiting.tell(word)
}

// tellManager tells the service manager that started this process, if one did, what it has come to.
func tellManager(state, status string) {
	_, _ = daemon.SdNotify(false, state+"\nSTATUS="+status) // nothing depends on its hearing
}

func (p *parent) tell(word string) {
	if p.fd < 0 {
		return
	}
	_, _ = unix.Write(p.fd, []byte(word+"\n"))
	if word == ready {
		unix.Close(p.fd)
		p.fd = -1 // the number may be another file's next
	}
}

// detach starts this command again, in the background, and returns when it is ready. Its log goes to a file in runDir.
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
