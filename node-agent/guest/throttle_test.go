package guest

import (
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/node-agent/guest/tail"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

func TestAGuestIsHeardAtItsRate(t *testing.T) {
	b := newBucket(hearRate, hearBurst)
	start := time.Now()
	if wait := b.charge(start, hearBurst); wait > 0 {
		t.Errorf("the first burst waits %v", wait)
	}
	if wait := b.charge(start, hearRate/2); wait != time.Second/2 {
		t.Errorf("half a second's worth more waits %v", wait)
	}
	if wait := b.charge(start.Add(time.Minute), hearBurst); wait > 0 {
		t.Errorf("a burst after a minute's rest waits %v", wait)
	}
	if b.takes(start.Add(time.Minute), 1) ||
		!b.takes(start.Add(time.Minute+time.Second), hearRate) {
		t.Error("what may not pass passes, or what may does not")
	}
}

// A counted connection counts the bytes that are read of it.
type counted struct {
	net.Conn
	n *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// join makes a guest that l expects, and lets it call.
func join(t *testing.T, l *Listener, cid uint32, heard *atomic.Int64) (*Conn, *fakeGuest) {
	t.Helper()
	c, err := l.Expect(cid)
	if err != nil {
		t.Fatal(err)
	}
	host, guest := net.Pipe()
	l.hand(counted{host, heard}, cid)
	g := &fakeGuest{t, guest, wire.NewReader(guest)}
	g.say(hello)
	if _, err := c.Hello(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c, g
}

// The node hears loud guests at its own rate, each of them as much as the others, and a quiet one
// at once.
func TestLoudGuestsShareTheNodeAndAQuietOneIsHeardAtOnce(t *testing.T) {
	const (
		loud    = 30
		rate    = 1 << 20
		seconds = 4
	)
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{make(chan call), make(chan struct{})}
		l := On(p)
		defer l.Close()
		l.node = newBucket(rate, rate)
		var each [loud]atomic.Int64
		for i := range loud {
			_, g := join(t, l, uint32(100+i), &each[i])
			line := wire.Up{Log: &wire.Log{Stream: "stdout", Text: strings.Repeat("x", 4000+i*400)}}
			go func() {
				for wire.Write(g, line) == nil {
				}
			}()
		}
		time.Sleep(time.Second) // of the bubble's time: by now the burst is used up
		began := time.Now()
		var before [loud]int64
		for i := range each {
			before[i] = each[i].Load()
		}
		var quiet atomic.Int64
		c, g := join(t, l, cid, &quiet)
		go io.Copy(io.Discard, g)
		for range 50 {
			g.say(wire.Up{Event: &wire.Event{Stage: "agent", Begin: 1, End: 2}})
		}
		if err := c.Configure(wire.Config{}); err != nil {
			t.Fatal(err)
		}
		g.say(wire.Up{Pong: &wire.Pong{ID: 1}})
		g.say(wire.Up{Ready: &wire.Ready{}})
		if err := c.Ready(t.Context()); err != nil || time.Since(began) > 0 {
			t.Errorf("a quiet guest's words took %v: %v", time.Since(began), err)
		}
		time.Sleep((seconds - 1) * time.Second)
		var sum, least, most int64
		for i := range each {
			sum += each[i].Load()
			n := each[i].Load() - before[i]
			if i == 0 || n < least {
				least = n
			}
			most = max(most, n)
		}
		if bound := int64(rate + seconds*rate +
			loud*(sureBurst+seconds*sureRate+hearMost)); sum > bound {
			t.Errorf("%d bytes were heard in %d s; at most %d", sum, seconds, bound)
		}
		if least < most*2/3 {
			t.Errorf("one loud guest was heard %d bytes, another %d", most, least)
		}
	})
}

func BenchmarkHearing(b *testing.B) {
	for name, text := range map[string]string{"short": "x", "long": strings.Repeat("x", 4<<10)} {
		b.Run(name, func(b *testing.B) {
			var line strings.Builder
			wire.Write(&line, wire.Up{Log: &wire.Log{Stream: "stdout", Text: text}})
			r := wire.NewReader(strings.NewReader(strings.Repeat(line.String(), b.N)))
			l := tail.New()
			b.SetBytes(int64(line.Len()))
			b.ResetTimer()
			for range b.N {
				var up wire.Up
				if err := r.Next(&up); err != nil {
					b.Fatal(err)
				}
				l.Add(wire.LogLine{Stream: up.Log.Stream, Text: up.Log.Text})
			}
		})
	}
}
