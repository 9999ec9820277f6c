package guest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

func TestProtocolBreaks(t *testing.T) {
	event := func(stage string) string {
		return fmt.Sprintf(`{"event":{"stage":%q,"begin":1,"end":2}}`, stage)
	}
	const greeting = `{"hello":{"boot":1,"real":1}}`
	for _, c := range []struct{ name, said, want string }{
		{"no JSON", "GET / HTTP/1.1", "does not decode"},
		{"no hello", event("agent"), "no hello"},
		{"two hellos", greeting + "\n" + greeting, "nothing asked for"},
		{"nothing", greeting + "\n{}", "nothing asked for"},
		{"a pong without a ping", greeting + "\n" + `{"pong":{"id":0}}`, "nothing asked for"},
		{"ready twice", greeting + "\n" + `{"ready":{}}` + "\n" + `{"ready":{}}`, "nothing asked for"},
		{"ready again", `{"hello":{"ready":true}}` + "\n" + `{"ready":{}}`, "nothing asked for"},
		{"a stage of the host", greeting + "\n" + event("vmm"), `stage "vmm"`},
		{"a stage of its own making", greeting + "\n" + event(strings.Repeat("x", 1000)), "stage"},
		{"a log line on no stream", greeting + "\n" + `{"log":{"stream":"x"}}`, "stream"},
		{"a log line that is too long", greeting + "\n" + `{"log":{"stream":"stdout","text":"` +
			strings.Repeat("x", 3*wire.MaxText+1) + `"}}`, "a log line of 49153 bytes"},
		{"a wrong type", `{"hello":[]}`, "does not decode"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, _, conn := expect(t)
			g := p.dial(t, cid)
			g.SetWriteDeadline(time.Now().Add(10 * time.Second))
			io.WriteString(g, c.said+"\n") // the host may have hung up already
			<-conn.Done()
			if err := conn.Err(); err == nil || !strings.Contains(err.Error(), c.want) ||
				len(err.Error()) > 200 {
				t.Errorf("ended with %v", err)
			}
		})
	}
}

func TestEventFloodIsBounded(t *testing.T) {
	p, _, c := expect(t)
	g := p.dial(t, cid)
	g.say(hello)
	for i := range 3 * maxEvents {
		g.say(wire.Up{Event: &wire.Event{Stage: "agent", Step: fmt.Sprint(i), Begin: 1, End: 2}})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.events) > maxEvents {
		t.Errorf("%d events are kept", len(c.events))
	}
}

// A guest that lies about time moves its spans, but not out of its life.
func TestSpansStayWithinTheGuestsLife(t *testing.T) {
	_, _, c := expect(t)
	c.clock.exchange(time.Now(), time.Now(), 1<<62)
	heardAt := time.Now()
	for _, boot := range []int64{-1 << 63, -1, 0, 1, 1 << 62, 1<<63 - 1} {
		if got := c.hold(boot, heardAt); got.Before(c.since) || got.After(heardAt) {
			t.Errorf("boot time %d is at %v", boot, got)
		}
	}
}

func FuzzGuest(f *testing.F) {
	f.Add(
		[]byte(
			`{"hello":{"boot":1,"real":3}}` + "\n" +
				`{"event":{"stage":"agent","begin":-9223372036854775808,"end":9223372036854775807}}` +
				"\n" +
				`{"log":{"stream":"stdout","text":"\u0000"}}` + "\n" +
				`{"pong":{"id":1,"boot":-1}}` + "\n" +
				`{"ready":{}}` + "\n" + `{"exit":{"reason":"\u0000"}}` + "\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		host, guest := net.Pipe()
		c := newConn(func() {}, newBucket(nodeRate, nodeBurst))
		c.attach(host)
		go io.Copy(io.Discard, guest)
		go c.ping()
		guest.Write(said)
		guest.Close()
		<-c.Done()
		c.Spans()
		c.Steps()
		lines := c.Logs().Read()
		line, _, err := lines.Next(t.Context())
		for ; err == nil; line, _, err = lines.Next(t.Context()) {
			if len(line.Text) > 3*wire.MaxText {
				t.Fatalf("a line of %d bytes", len(line.Text))
			}
		}
		if !errors.Is(err, io.EOF) {
			t.Fatalf("its logs end with %v", err)
		}
		if c.Err() == nil {
			t.Fatal("it ended without a reason")
		}
		c.Close()
	})
}
