package api

import (
	"encoding/binary"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
)

// An inlet is a node's socket without a listener.
type inlet struct {
	*testing.T
	*socket
	serving sync.WaitGroup
}

func newInlet(t *testing.T, node NodeServer) *inlet {
	i := &inlet{T: t, socket: newSocket(node, slog.New(slog.DiscardHandler))}
	t.Cleanup(i.serving.Wait)
	return i
}

// connect is the invoker's end of a connection.
func (i *inlet) connect() net.Conn {
	near, far := net.Pipe()
	i.serving.Go(func() { _ = i.serveFrames(newFrames(near, i.budget)) })
	i.Cleanup(func() { far.Close() })
	return far
}

// answered returns the next answer on a connection.
func (i *inlet) answered(conn net.Conn) *RunsReply {
	i.Helper()
	reply := &RunsReply{}
	if _, _, err := newFrames(conn, nil).receive(reply); err != nil {
		i.Error(err)
	}
	return reply
}

func (i *inlet) ask(conn net.Conn, in *RunsRequest) {
	i.Helper()
	if _, err := conn.Write(frame(i, in)); err != nil {
		i.Error(err)
	}
}

func (i *inlet) expectFree(want int) {
	i.Helper()
	synctest.Wait()
	if free := i.budget.free.Load(); free != int64(want) {
		i.Errorf("%d bytes are free, want %d", free, want)
	}
}

// A run that finds no room is refused at once, and the frames behind it are heard.
func TestARunWithoutRoomIsRefusedAlone(t *testing.T) {
	for name, free := range map[string]int{"large": leftFree, "small": runCost} {
		synctest.Test(t, func(t *testing.T) {
			i := newInlet(t, echo{})
			i.budget.owe(mostHeld - free)
			conn := i.connect()
			defer conn.Close()
			body := []byte("one byte too many")
			if name == "large" {
				body = make([]byte, 1<<20)
			}
			begin := time.Now()
			i.ask(conn, &RunsRequest{Number: 1 << 60, Run: &RunRequest{Body: body}})
			got := i.answered(conn)
			if got.Number != 1<<60 || codes.Code(got.Code) != codes.Unavailable {
				t.Errorf("%s: run %d, code %d %s", name, got.Number, got.Code, got.Message)
			}
			i.expectFree(free)
			i.ask(conn, &RunsRequest{Number: 2, Run: &RunRequest{}})
			if got := i.answered(conn); got.Number != 2 || got.Run == nil {
				t.Errorf("%s: the next run: %v", name, got)
			}
			if took := time.Since(begin); took != 0 {
				t.Errorf("%s: the run behind it waited %v", name, took)
			}
			i.expectFree(free)
		})
	}
}

// A peer holds room no longer than it may stall, and nobody is hung up on between frames.
func TestWhoStallsIsHungUpOn(t *testing.T) {
	half := frame(t, &RunsRequest{Number: 1, Run: &RunRequest{Body: make([]byte, 1000)}})[:500]
	large := append(binary.BigEndian.AppendUint32(nil, maxMessage), half...)
	for name, c := range map[string]struct {
		says  []byte
		holds int
	}{
		"a length":       {half[:2], 0},
		"a frame":        {half, 0},
		"a large frame":  {large, maxMessage + runCost},
		"takes nothing":  {frame(t, asked("sandbox")), 2 + runCost},
		"nothing at all": {nil, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			i := newInlet(t, echo{})
			conn := i.connect()
			defer conn.Close()
			if _, err := conn.Write(c.says); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			if held := mostHeld - int(i.budget.free.Load()); held < c.holds {
				t.Errorf("%s: %d bytes are held, want %d", name, held, c.holds)
			}
			time.Sleep(2*silence + time.Second) // of a clock that does not take its time
			i.expectFree(mostHeld)
			// A pipe that was closed takes no deadline.
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
			_, err := conn.Read(make([]byte, 1))
			if goesOn := err != io.EOF; goesOn != (c.says == nil) {
				t.Errorf("%s: it goes on: %t, %v", name, goesOn, err)
			}
		})
	}
}

// Eight connections that begin the largest frames hold no more than the budget.
func TestFramesOfAllConnectionsShareTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newInlet(t, echo{})
		for range 8 {
			conn := i.connect()
			defer conn.Close()
			if _, err := conn.Write(binary.BigEndian.AppendUint32(nil, maxMessage)); err != nil {
				t.Error(err)
			}
		}
		synctest.Wait()
		held := mostHeld - i.budget.free.Load()
		if held < maxMessage || held > mostHeld-leftFree {
			t.Errorf("they hold %d MiB of %d", held>>20, mostHeld>>20)
		}
	})
}

func TestABudgetIsExact(t *testing.T) {
	b := newBudget()
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 200 {
				if n := 1 + rand.IntN(2*maxMessage); b.take(n) {
					b.give(n)
				}
			}
		})
	}
	all.Wait()
	if free := b.free.Load(); free != mostHeld {
		t.Errorf("%d bytes are free of %d", free, mostHeld)
	}
}

func TestTheConnectionsOfAUserAreBounded(t *testing.T) {
	socket := serve(t, "unix", filepath.Join(t.TempDir(), "socket"), quiet(echo{}))
	var first net.Conn
	for range mostConns {
		if conn := greeted(t, socket); first == nil {
			first = conn
		}
	}
	again := func() error {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return newFrames(conn, nil).greet()
	}
	if again() == nil {
		t.Errorf("%d connections of one user", mostConns+1)
	}
	first.Close()
	for again() != nil { // until the node has seen that it is gone
	}
}
