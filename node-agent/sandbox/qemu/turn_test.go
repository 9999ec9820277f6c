package qemu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/node-agent/guest"
	"github.com/fastiov/fastiov/node-agent/guest/door"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/jail"
)

// A played VMM runs its guest or does not, and answers each command when the test lets it.
type played struct {
	*vm
	qemu    net.Conn // its end of the control connection
	answer  chan struct{}
	running bool
}

// play makes a vm of a VMM and a guest that the test plays; end takes it down.
func play(t *testing.T, running bool) (p *played, guestEnd net.Conn, end func()) {
	t.Helper()
	return playGuest(t, running, wire.Hello{Ready: true})
}

func playGuest(t *testing.T, running bool, hello wire.Hello) (p *played, guestEnd net.Conn,
	end func()) {
	t.Helper()
	p = &played{answer: make(chan struct{}), running: running}
	p.vm = newVM(sandbox.Spec{ID: "f-1"}, &jail.Cell{}, door.Secret{})
	ours, theirs := net.Pipe()
	p.qemu = theirs
	go p.serve(theirs)
	p.qmp = newQMP(ours, p.onEvent)

	calls := line{make(chan net.Conn), make(chan struct{})}
	listener := guest.On(calls)
	var err error
	if p.conn, err = listener.Expect(3); err != nil {
		t.Fatal(err)
	}
	host, guestEnd := net.Pipe()
	calls.calls <- host
	say(t, guestEnd, wire.Up{Hello: &hello})
	return p, guestEnd, func() {
		p.qmp.close()
		listener.Close()
		guestEnd.Close()
	}
}

func (p *played) serve(theirs net.Conn) {
	defer theirs.Close()
	for commands := bufio.NewScanner(theirs); commands.Scan(); {
		<-p.answer
		switch said := commands.Text(); {
		case strings.Contains(said, "query-status") && p.running:
			fmt.Fprint(theirs, isRunning)
		case strings.Contains(said, "query-status"):
			fmt.Fprint(theirs, isPaused)
		case strings.Contains(said, "cont"):
			p.running = true
			fmt.Fprint(theirs, done)
		default:
			p.running = false
			fmt.Fprint(theirs, stopped+done)
		}
	}
}

// A line is a guest.Transport of calls that the test makes.
type line struct {
	calls chan net.Conn
	ended chan struct{}
}

func (l line) Accept() (net.Conn, uint32, error) {
	select {
	case c := <-l.calls:
		return c, 3, nil
	case <-l.ended:
		return nil, 0, net.ErrClosed
	}
}

func (l line) Close() error { close(l.ended); return nil }

func say(t *testing.T, to net.Conn, up wire.Up) {
	t.Helper()
	if err := wire.Write(to, up); err != nil {
		t.Fatal(err)
	}
}

func TestAPauseOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, end := play(t, true)
		defer end()
		ctx, hangUp := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Pause(ctx) }()
		synctest.Wait()
		hangUp()
		synctest.Wait()
		close(p.answer)
		if err := <-ended; err != nil || p.running || p.Cause() != nil {
			t.Errorf("paused: %v, runs: %t, ended by: %v", err, p.running, p.Cause())
		}
	})
}

// When a guest falls, its connection may end first. Why it fell is told then, too.
func TestQEMUTellsWhyAGuestFell(t *testing.T) {
	const (
		reset    = `{"event":"SHUTDOWN","data":{"guest":true,"reason":"guest-reset"}}` + "\n"
		panicked = `{"event":"GUEST_PANICKED","data":{"action":"run"}}` + "\n"
		rude     = `{"event":"SHUTDOWN","data":{"reason":"\u001b[2Jguest-reset\n"}}` + "\n"
	)
	for name, c := range map[string]struct {
		told  string
		ends  bool
		takes time.Duration
		want  string
	}{
		"QEMU tells":          {reset, false, tellsWithin / 2, "; its guest ended (guest-reset)"},
		"QEMU tells and ends": {reset, true, tellsWithin / 2, "; its guest ended (guest-reset)"},
		"it panicked":         {panicked, false, tellsWithin / 2, "; its guest kernel panicked"},
		"a terminal's orders": {rude, false, tellsWithin / 2, "; its guest ended ([2Jguest-reset)"},
		"QEMU ends":           {"", true, tellsWithin, ""},
		"QEMU goes on":        {"", false, tellsWithin, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, guestEnd, end := play(t, true)
				defer end()
				defer close(p.answer)
				guestEnd.Close()
				<-p.conn.Done()
				p.End(fmt.Errorf("it is not ready: %w", p.conn.Err()))
				time.AfterFunc(tellsWithin/2, func() {
					io.WriteString(p.qemu, c.told)
					if c.ends {
						p.qemu.Close()
					}
				})
				begin := time.Now()
				if fell := p.fell(); fell != c.want || time.Since(begin) != c.takes {
					t.Errorf("%q after %v, want %q", fell, time.Since(begin), c.want)
				}
			})
		})
	}
}

// What ends by another cause waits for nothing that QEMU may tell.
func TestAnEndWaitsForNoWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, end := play(t, true)
		defer end()
		defer close(p.answer)
		begin := time.Now()
		p.End(errors.New("another"))
		if fell := p.fell(); fell != "" || time.Since(begin) > 0 {
			t.Errorf("%q after %v", fell, time.Since(begin))
		}
	})
}

// A guest whose VF is coming up is not paused, and nobody waits for that.
func TestNoPauseBeforeTheVFIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, guestEnd, end := play(t, true)
		defer end()
		close(p.answer)
		p.late.gated = true
		begin := time.Now()
		if err := p.Pause(t.Context()); !errors.Is(err, sandbox.ErrComingUp) || !p.running ||
			time.Since(begin) > 0 {
			t.Errorf("%v after %v, runs: %t", err, time.Since(begin), p.running)
		}
		say(t, guestEnd, wire.Up{Gate: &wire.Gate{}})
		<-p.conn.Opened()
		if err := p.Pause(t.Context()); err != nil || p.running {
			t.Errorf("%v, runs: %t", err, p.running)
		}
		if p.Cause() != nil {
			t.Errorf("ended: %v", p.Cause())
		}
	})
}

// A guest that never says that its VF is up is ended: it could not be paused.
func TestAVFThatNeverComesUpEndsItsSandbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, end := play(t, true)
		defer end()
		defer close(p.answer)
		p.late.gated = true
		go (&boot{vm: p.vm}).follow()
		time.Sleep(opensWithin - time.Second)
		if p.Cause() != nil {
			t.Fatalf("ended early: %v", p.Cause())
		}
		time.Sleep(2 * time.Second)
		if p.Cause() == nil {
			t.Error("it has not ended")
		}
	})
}

func TestAVMMThatDoesNotAnswerIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _, end := play(t, true)
		defer close(p.answer)
		begin := time.Now()
		go func() { <-p.Context().Done(); end() }()
		err := p.Pause(t.Context())
		if err == nil || p.Cause() == nil || time.Since(begin) != answersWithin {
			t.Errorf("after %v: %v, ended by: %v", time.Since(begin), err, p.Cause())
		}
	})
}

// The second of two that resume a sandbox returns when the clock is right, as the first does.
func TestTwoResumesWaitForTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, guestEnd, end := play(t, false)
		defer end()
		close(p.answer)
		resumed := make(chan error, 2)
		for range 2 {
			go func() { resumed <- p.Resume(t.Context()) }()
		}
		var told wire.Down
		if err := wire.NewReader(guestEnd).Next(&told); err != nil || told.Wake == nil {
			t.Fatal(told, err)
		}
		synctest.Wait()
		if len(resumed) != 0 {
			t.Errorf("a Resume returned before the clock was set: %v", <-resumed)
		}
		say(t, guestEnd, wire.Up{Woken: &wire.Woken{}})
		for range 2 {
			if err := <-resumed; err != nil {
				t.Error(err)
			}
		}
	})
}

// A former agent may have died after it let a guest run and before it told it the time.
func TestAnAdoptedGuestIsToldTheTime(t *testing.T) {
	for _, running := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p, guestEnd, end := play(t, running)
			defer end()
			close(p.answer)
			adopted := make(chan error, 1)
			go func() { adopted <- p.goOn(t.Context()) }()
			synctest.Wait()
			if len(adopted) != 0 {
				t.Fatalf("running %t: adopted with the clock as it was: %v", running, <-adopted)
			}
			var told wire.Down
			if err := wire.NewReader(guestEnd).Next(&told); err != nil || told.Wake == nil {
				t.Fatal(told, err)
			}
			say(t, guestEnd, wire.Up{Woken: &wire.Woken{}})
			if err := <-adopted; err != nil || !p.running {
				t.Errorf("running %t: runs now: %t, %v", running, p.running, err)
			}
		})
	}
}

// A guest whose VF was coming up when its agent was replaced is not paused before it is up.
func TestAnAdoptedGuestWhoseVFIsComingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, guestEnd, end := playGuest(t, true, wire.Hello{Ready: true, Shut: true})
		defer end()
		close(p.answer)
		adopted := make(chan error, 1)
		go func() { adopted <- p.goOn(t.Context()) }()
		var told wire.Down
		if err := wire.NewReader(guestEnd).Next(&told); err != nil || told.Wake == nil {
			t.Fatal(told, err)
		}
		say(t, guestEnd, wire.Up{Woken: &wire.Woken{}})
		if err := <-adopted; err != nil {
			t.Fatal(err)
		}
		if err := p.Pause(t.Context()); !errors.Is(err, sandbox.ErrComingUp) || !p.running {
			t.Errorf("%v, runs: %t", err, p.running)
		}
		say(t, guestEnd, wire.Up{Gate: &wire.Gate{}})
		<-p.conn.Opened()
		if err := p.Pause(t.Context()); err != nil || p.running {
			t.Errorf("%v, runs: %t", err, p.running)
		}
	})
}
