package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fastiov/fastiov/command/settings"
	"github.com/fastiov/fastiov/node-agent/api/metrics"
)

// serveApart runs a node in this process and its invoker in another one, as another user, until ctx
// ends. The invoker starts first and ends first. So if it lacks anything, it says so before a VF is
// touched, and it asks nothing of an agent that ends.
func serveApart(
	ctx context.Context, up *cobra.Command, n *nodeFlags, i *invokerFlags, again *reload,
	logTo io.Writer,
) error {
	again.log = again.log.With("process", "agent")
	log := again.log
	unlock, err := n.lock()
	if err != nil {
		return err
	}
	defer unlock()
	as, err := accountOf(i.account(n.sandbox), log)
	if err != nil {
		return err
	}
	if _, err := i.key(n.stateDir); err != nil { // makes it: the key is root's
		return err
	}
	if err := handOver(n.stateDir, as); err != nil {
		return err
	}
	n.group = as.gid
	front := &companion{
		words: wordsOfInvoker(up, n), as: as, drain: i.drain, levels: make(chan string, 1),
		log: log, logTo: logTo,
	}
	if err := front.openDoors(n, i); err != nil {
		return err
	}
	defer front.doors.close()
	if err := front.start(ctx); err != nil {
		return err
	}
	defer front.end()
	node, err := openNode(ctx, n, ofProcess(asAgent), log)
	if err != nil {
		return err
	}
	defer node.close()
	page := metrics.Page(node.registry)
	stop, err := serveMetrics(filepath.Join(n.runDir, metricsSocket), n.group, page, nil,
		node.agent.Ready, log)
	if err != nil {
		return err
	}
	defer stop()
	if err := front.begin(); err != nil {
		return err
	}
	again.onHangup(ctx, node.reload, func() error { return front.logAt(again.logs.level) })
	tellParent(ready)
	front.keep(ctx)
	return nil
}

// wordsOfInvoker returns the arguments of the invoker: what `up` was given for it, by flags, the
// environment or the file, and where its agent is. It reads no file, which may be root's alone.
func wordsOfInvoker(up *cobra.Command, n *nodeFlags) (words []string) {
	theirs := invokerCmd().Flags()
	notTheirs := []string{"metrics", "config"} // the first stands for the page of both
	up.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && theirs.Lookup(f.Name) != nil && !slices.Contains(notTheirs, f.Name) {
			words = append(words, wordsOf(f)...)
		}
	})
	return append(words, "--config="+settings.NoFile, "--metrics="+n.metrics,
		"--node="+filepath.Join(n.runDir, nodeSocket),
		"--agent-metrics="+filepath.Join(n.runDir, metricsSocket))
}

// wordsOf is a flag as it is given on a command line.
func wordsOf(f *pflag.Flag) (words []string) {
	list, is := f.Value.(pflag.SliceValue)
	if !is {
		return []string{"--" + f.Name + "=" + f.Value.String()}
	}
	for _, value := range list.GetSlice() {
		words = append(words, "--"+f.Name+"="+value)
	}
	return words
}

// A companion is the invoker as a process of its own. It is started again when it ends by itself,
// which neither the agent nor its sandboxes notice.
type companion struct {
	words []string
	as    account
	doors doors
	drain time.Duration
	log   *slog.Logger
	logTo io.Writer
	*running
	levels chan string // of its log, from now on
}

// A running companion has two pipes. On one it tells how far it is, or why it ends. On the other,
// its leash, it learns when its agent is there, and it ends when the leash does.
type running struct {
	cmd   *exec.Cmd
	tells *os.File
	told  *bufio.Reader
	leash *os.File
	drain time.Duration // how long its stop may wait for calls
	ended chan struct{}
	err   error // once it has ended
}

// The words that an invoker says and hears.
const (
	opened = "opened" // has its store
	begin  = "begin"
	ready  = "ready"

	logLevel = "log-level " // and a level
)

func (c *companion) openDoors(n *nodeFlags, i *invokerFlags) (err error) {
	defer func() {
		if err != nil {
			c.doors.close()
		}
	}()
	if err := errors.Join(c.doors.open(whatListen, "listen", i.listen),
		c.doors.open(whatListen, "https", i.https)); err != nil {
		return err
	}
	if err := noteListen(n.runDir, c.doors...); err != nil {
		return err
	}
	if err := errors.Join(c.doors.open(whatMetrics, "metrics", n.metrics),
		c.doors.open(whatStorage, "storage", i.storage)); err != nil {
		return err
	}
	user, err := openUserDoor(n.runDir, c.as.gid)
	if err == nil {
		c.doors = append(c.doors, door{userDoor, user})
	}
	return err
}

// start returns when the invoker has opened what it needs, and waits for its agent.
func (c *companion) start(ctx context.Context) error {
	theirs, err := c.doors.files()
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	if err != nil {
		return err
	}
	r := &running{ended: make(chan struct{}), drain: c.drain}
	var theirTells, theirLeash *os.File
	if r.tells, theirTells, err = os.Pipe(); err != nil {
		return err
	}
	theirs = append([]*os.File{theirTells}, theirs...)
	if theirLeash, r.leash, err = os.Pipe(); err != nil {
		r.tells.Close()
		return err
	}
	theirs = slices.Insert(theirs, 1, theirLeash)
	r.told = bufio.NewReader(r.tells)
	names := []string{"leash"}
	for _, door := range c.doors {
		names = append(names, door.name)
	}
	// By this path it can be started by a user who may not enter the binary's directory.
	r.cmd = exec.Command("/proc/self/exe", append([]string{"invoker"}, c.words...)...)
	r.cmd.Args[0] = "fastiov"
	r.cmd.Env = append(environment(), readyFD+"=3", inheritance+"="+strings.Join(names, ","))
	r.cmd.Stderr, r.cmd.ExtraFiles = c.logTo, theirs
	r.cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // a terminal's interrupt is for the agent, which ends it
		Credential: &syscall.Credential{Uid: uint32(c.as.uid), Gid: uint32(c.as.gid)},
	}
	if err := startConfined(r.cmd); err != nil {
		r.tells.Close()
		r.leash.Close()
		return fmt.Errorf("the invoker, as user %s: %w", c.as.name, err)
	}
	c.running = r
	forget := context.AfterFunc(ctx, r.end)
	go func() {
		r.err = r.cmd.Wait()
		forget() // or ctx keeps it for as long as the agent runs
		close(r.ended)
	}()
	theirTells.Close()
	return r.await(opened)
}

// begin tells the invoker that its agent is there, and returns when it serves.
func (r *running) begin() error {
	_, _ = fmt.Fprintln(r.leash, begin) // whether it is still there, it tells
	return r.await(ready)
}

func (r *running) await(word string) error {
	line, _ := r.told.ReadSlice('\n') // which is of bounded length
	told := strings.TrimSpace(string(line))
	if told == word {
		return nil
	}
	<-r.ended
	if told == "" {
		told = fmt.Sprintf("it has ended without a word (%v)", r.err)
	}
	return fmt.Errorf("the invoker: %s", told)
}

// end ends the invoker, with the time it takes to answer what it has.
func (r *running) end() {
	patience := r.drain + 15*time.Second
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-r.ended:
	case <-time.After(patience):
		_ = r.cmd.Process.Kill()
		<-r.ended
	}
	r.leash.Close()
	r.tells.Close()
}

// keep has an invoker run until ctx ends. It starts one that fails again, but not one that was told
// to end.
func (c *companion) keep(ctx context.Context) {
	const least, most, steady = time.Second, 30 * time.Second, time.Minute
	for delay := least; ; delay = min(2*delay, most) {
		since := time.Now()
		if !c.watch(ctx) {
			c.end() // before its agent
			return
		}
		c.end()
		if c.err == nil {
			c.log.Info("the invoker was told to end; the agent goes on without one")
			c.doors.close()
			<-ctx.Done()
			return
		}
		if time.Since(since) > steady {
			delay = least
		}
		c.log.Error("the invoker has failed; it is started again", "err", c.err, "in", delay)
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
		former := c.running
		if err := c.start(ctx); err != nil {
			if c.running == former { // else it says so itself, and its end is noticed above
				c.log.Error("the invoker could not be started", "err", err)
			}
			continue
		}
		if c.begin() == nil {
			c.log.Info("the invoker is back")
		}
	}
}

// watch returns true when the invoker has ended, and false when ctx has.
func (c *companion) watch(ctx context.Context) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-c.ended:
			return true
		case level := <-c.levels:
			c.words = append(c.words, "--log-level="+level) // for one that is started again
			_, _ = fmt.Fprintln(c.leash, logLevel+level)    // one that has ended is noticed above
		}
	}
}

// logAt has the invoker log from that level on.
func (c *companion) logAt(level string) error {
	select {
	case <-c.levels: // nobody has heard that one yet
	default:
	}
	c.levels <- level
	return nil
}

// environment returns the part of root's environment that the invoker gets: the settings of Go's
// runtime, of OpenTelemetry and of tests. The rest, passwords perhaps, is not for it.
func environment() []string {
	told := []string{"PATH=", "TZ=", "LANG=", "GOGC=", "GOMAXPROCS=", "GOMEMLIMIT=", "GODEBUG=",
		"GOTRACEBACK=",
		"SSL_CERT_", "OTEL_", "FASTIOV_TEST_"}
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return !slices.ContainsFunc(told, func(prefix string) bool {
			return strings.HasPrefix(v, prefix)
		})
	})
}
