package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/node-agent/guest"
	"github.com/fastiov/fastiov/node-agent/guest/door"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

const testCID = 3

var testSecret = door.Secret{1, 2, 3}

// local is a transport over a unix socket, whose guests all have testCID.
type local struct{ net.Listener }

func (l local) Accept() (net.Conn, uint32, error) {
	c, err := l.Listener.Accept()
	return c, testCID, err
}

// listenLocal is an agent's end at path, with one guest expected.
func listenLocal(t *testing.T, path string) (*guest.Listener, *guest.Conn) {
	t.Helper()
	socket, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l := guest.On(local{socket})
	t.Cleanup(l.Close)
	conn, err := l.Expect(testCID)
	if err != nil {
		t.Fatal(err)
	}
	return l, conn
}

func dialLocal(path string) func() (*os.File, error) {
	return func() (*os.File, error) { return dial(unix.AF_UNIX, &unix.SockaddrUnix{Name: path}) }
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// An agent of a version without gates is told of the VF in words that it knows, or it would end the
// conversation. Its successor hears in the hello that the VF is coming up, as long as it is.
func TestAgentsHearOfTheGate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := newHost(boottime())
	h.shut()
	h.ready(0)
	h.call(dialLocal(path))
	for _, shut := range []bool{true, false} {
		call, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		messages := wire.NewReader(call)
		var hello wire.Up
		if err := messages.Next(&hello); err != nil || hello.Hello.Shut != shut {
			t.Errorf("%+v, %v; want shut %t", hello.Hello, err, shut)
		}
		if shut {
			h.opened(wire.Gate{Held: 1, First: 1, Open: 2})
			var former struct{ Event, Log, Ready, Exit, Pong, Woken json.RawMessage }
			if err := messages.Next(&former); err != nil || former.Event == nil {
				t.Errorf("a former agent hears %+v, %v", former, err)
			}
		}
		call.Close()
	}
	h.mu.Lock()
	h.ending = true
	h.mu.Unlock()
}

func TestConversationFromTheGuest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent")
	ctx := deadline(t)
	agent, conn := listenLocal(t, path)
	h := newHost(boottime())
	rec := &recorder{host: h}
	rec.step("early", func() error { return nil }) // before the host is called
	h.call(dialLocal(path))
	if hello, err := conn.Hello(ctx); err != nil || hello.Ready || hello.Boot != h.start {
		t.Fatal(hello, err)
	}
	if err := conn.Configure(wire.Config{Hostname: "h"}); err != nil {
		t.Fatal(err)
	}
	if config, err := h.config(time.Minute); err != nil || config.Hostname != "h" {
		t.Fatal(config, err)
	}
	rec.stage(agentStage, h.start)
	for _, stream := range []string{"stdout", "stderr"} {
		h.log(stream, "on "+stream)
	}
	h.ready(0)
	if err := conn.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	set := make(chan int64, 1)
	h.wake = func(unixNano int64) error { set <- unixNano; return nil }
	if err := conn.Wake(ctx); err != nil {
		t.Fatal(err)
	}
	if late := time.Since(time.Unix(0, <-set)); late < 0 || late > time.Minute {
		t.Errorf("the guest was told a time %v ago", late)
	}
	lines := logged(ctx, conn, 2)
	if len(lines) != 2 || lines[0].Text != "on stdout" || lines[1].Text != "on stderr" {
		t.Errorf("logs: %+v", lines)
	}
	if spans := conn.Spans(); len(spans) != 2 {
		t.Errorf("spans: %+v", spans)
	}
	agent.Close()

	again, adopted := listenLocal(t, path) // a restarted agent
	defer again.Close()
	if hello, err := adopted.Hello(ctx); err != nil || !hello.Ready || hello.Boot != h.start {
		t.Fatal(hello, err)
	}
	go h.log("stderr", "after the restart")
	if lines := logged(ctx, adopted, 1); len(lines) != 1 || lines[0].Text != "after the restart" {
		t.Errorf("logs: %+v", lines)
	}
	reason := errors.New("no carrier")
	h.because(reason)
	h.goodbye(h.why(errors.New("the runtime ended")))
	if <-adopted.Done(); !strings.Contains(adopted.Err().Error(), reason.Error()) ||
		!errors.Is(adopted.Err(), wire.ErrNIC) {
		t.Errorf("the agent heard %v", adopted.Err())
	}
}

// logged waits for the first lines that the agent hears; it returns fewer if the guest says no
// more.
func logged(ctx context.Context, agent *guest.Conn, most int) (lines []wire.LogLine) {
	for all := agent.Logs().Read(); len(lines) < most; {
		line, _, err := all.Next(ctx)
		if err != nil {
			return lines
		}
		lines = append(lines, line)
	}
	return lines
}

func TestHostLostBeforeReady(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent")
	agent, conn := listenLocal(t, path)
	h := newHost(boottime())
	h.call(dialLocal(path))
	if _, err := conn.Hello(deadline(t)); err != nil {
		t.Fatal(err)
	}
	agent.Close()
	if err := <-h.down; !strings.Contains(err.Error(), "hung up before") {
		t.Error(err)
	}
	h.goodbye(errors.New("nobody hears this")) // and nothing hangs
}

func TestNoConfiguration(t *testing.T) {
	if _, err := newHost(boottime()).config(time.Millisecond); err == nil {
		t.Error("there is none")
	}
}

func TestKernelOptions(t *testing.T) {
	got := kernelOptions("console=ttyS0 quiet fastiov.probe=1 a=b=c\n")
	if got["fastiov.probe"] != "1" || got["console"] != "ttyS0" || got["a"] != "b=c" ||
		got["fastiov.control"] != "" {
		t.Errorf("%q", got)
	}
}

// A VF that has not come up is the reason for the guest's end, whatever the program does then.
func TestTheCauseIsToldBeforeItsConsequence(t *testing.T) {
	h, seen := newHost(boottime()), errors.New("the runtime ended with status 1")
	if why := h.why(seen); why != seen {
		t.Errorf("without a cause: %v", why)
	}
	cause := errors.New("no carrier")
	h.because(cause)
	if why := h.why(seen); why != cause {
		t.Errorf("with a cause: %v", why)
	}
}
