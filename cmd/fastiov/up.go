package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
)

// invokerFlags are what an invoker is told.
type invokerFlags struct {
	listen    string
	apiHost   string
	keepAlive time.Duration
	policy    string
	pause     time.Duration
	wait      time.Duration
}

func (i *invokerFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&i.listen, "listen", "127.0.0.1:3233", "where the OpenWhisk API is served; other than on loopback it takes only the key it made at first start")
	f.StringVar(&i.apiHost, "api-host", "", "what functions get as __OW_API_HOST (default: http:// and the listen address)")
	f.DurationVar(&i.keepAlive, "keep-alive", 10*time.Minute, "how long a warm sandbox waits for another call")
	f.StringVar(&i.policy, "keep-alive-policy", "fixed", "fixed: every sandbox waits for --keep-alive; histogram: as long as its function's calls have been apart, --keep-alive where they say nothing")
	f.DurationVar(&i.pause, "pause-after", 10*time.Second, "how long a warm sandbox waits before it is paused; 0: it never is")
	f.DurationVar(&i.wait, "wait", time.Minute, "how long a call queues for a sandbox before it is refused with the reason")
}

// pool is how the nodes are used; start is how long a start may take.
func (i *invokerFlags) pool(start time.Duration) (pool.Config, error) {
	cfg := pool.Config{KeepAlive: i.keepAlive, PauseAfter: i.pause, Wait: i.wait, Start: start}
	switch i.policy {
	case "fixed":
	case "histogram":
		cfg.Policy = pool.Histogram{Otherwise: i.keepAlive}
	default:
		return cfg, fmt.Errorf("--keep-alive-policy %q: there are fixed and histogram", i.policy)
	}
	return cfg, nil
}

// upCmd runs invoker and agent in one process: on this machine if it can be a node, else in the testbed.
func upCmd() *cobra.Command {
	var n nodeFlags
	var i invokerFlags
	var foreground bool
	cmd := &cobra.Command{Use: "up", Short: "Start fastiov here, or in a testbed where this machine cannot be a node", Args: cobra.NoArgs}
	n.register(cmd)
	i.register(cmd)
	cmd.Flags().BoolVar(&foreground, "foreground", false, "stay in the foreground, as a service does")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if foreground {
			return serveAll(cmd.Context(), &n, &i, os.Stderr)
		}
		if n.sandbox == "qemu" && n.images == "" {
			if away, err := upInTestbed(cmd, &i); away {
				return err
			}
		}
		if err := detach(cmd.Context(), n.runDir); err != nil {
			return err
		}
		key, err := openwhisk.LoadKey(i.listen, keyFile(n.stateDir))
		if err != nil {
			return err
		}
		address, err := readListen(n.runDir)
		if err == nil {
			announce(cmd.OutOrStdout(), "http://"+address, "http://"+n.metrics, key.String())
		}
		return err
	}
	return cmd
}

// serveAll runs a node and its invoker until ctx ends.
func serveAll(ctx context.Context, n *nodeFlags, i *invokerFlags, logTo io.Writer) error {
	log := slog.New(slog.NewTextHandler(logTo, nil))
	key, err := openwhisk.LoadKey(i.listen, keyFile(n.stateDir))
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", i.listen) // first: a port that is taken is found before anything is started
	if err != nil {
		return fmt.Errorf("OpenWhisk API: %w; choose another address with --listen", err)
	}
	defer listener.Close()
	if err := noteListen(n.runDir, listener); err != nil {
		return err
	}
	stopTraces, err := exportTraces(ctx)
	if err != nil {
		return err
	}
	defer stopTraces()
	node, err := openNode(ctx, n, log)
	if err != nil {
		return err
	}
	defer node.close()
	client := api.Local(node.agent)
	if err := endStrangers(ctx, client, log); err != nil {
		return err
	}
	poolConfig, err := i.pool(n.boot + 2*time.Minute)
	if err != nil {
		return err
	}
	whisk, err := openwhisk.New(openwhisk.Config{Version: version, Key: key, APIHost: i.host(), Pool: poolConfig}, client, node.registry)
	if err != nil {
		return err
	}
	defer whisk.Close()
	return serveUntil(ctx, whisk.Server(), listener, log)
}

func keyFile(stateDir string) string { return filepath.Join(stateDir, "key") }

// The address at which an invoker serves is noted in the run directory, for the commands that call it.
func listenFile(runDir string) string { return filepath.Join(runDir, "listen") }

func noteListen(runDir string, l net.Listener) error {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(listenFile(runDir), []byte(l.Addr().String()), 0o644)
}

func readListen(runDir string) (string, error) {
	b, err := os.ReadFile(listenFile(runDir))
	if err != nil {
		return "", fmt.Errorf("no invoker runs here: %w; start one with `fastiov up`, or say where it is with --listen", err)
	}
	return string(b), nil
}

func (i *invokerFlags) host() string {
	if i.apiHost != "" {
		return i.apiHost
	}
	return "http://" + i.listen
}

// endStrangers stops the sandboxes that the agent adopted: this invoker is new and knows not what they hold.
func endStrangers(ctx context.Context, node api.NodeClient, log *slog.Logger) error {
	st, err := node.Status(ctx, &api.StatusRequest{})
	if err != nil {
		return err
	}
	for _, s := range st.Sandboxes {
		log.Info("ending a sandbox of a former invoker", "sandbox", s.Id)
		if _, err := node.Stop(ctx, &api.StopRequest{Id: s.Id}); err != nil {
			return err
		}
	}
	return nil
}

func serveUntil(ctx context.Context, server *http.Server, listener net.Listener, log *slog.Logger) error {
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	log.Info("OpenWhisk API ready", "address", listener.Addr())
	tellParent()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	patience, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(patience); err != nil {
		server.Close()
	}
	return nil
}

// readyFD is inherited by a detached process; a line on it says that it is ready, its end without one that it is not.
const readyFD = "FASTIOV_READY_FD"

func tellParent() {
	if os.Getenv(readyFD) != "" {
		f := os.NewFile(3, "ready")
		fmt.Fprintln(f, "ready")
		f.Close()
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
