package guest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/sandbox"
)

const end = wire.Sentinel

// now is a context whose time is up: a take with it waits for nothing.
func now() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func (l *logs) take(ctx context.Context, gone <-chan struct{}) []sandbox.LogLine {
	l.await(ctx, gone)
	return l.cutOff()
}

func texts(lines []sandbox.LogLine) []string {
	var all []string
	for _, l := range lines {
		all = append(all, l.Stream[3:]+" "+l.Text)
	}
	return all
}

func TestTakes(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines []string // "out text" or "err text"
		takes [][]string
	}{
		{"both streams in order of arrival", []string{"out a", "err b", "out c", "out " + end, "err " + end}, [][]string{{"out a", "err b", "out c"}}},
		{"nothing written", []string{"out " + end, "err " + end}, [][]string{nil}},
		{"two activations", []string{"out a", "out " + end, "err " + end, "err b", "out " + end, "err " + end}, [][]string{{"out a"}, {"err b"}}},
		{"one stream is ahead", []string{"out " + end, "out b", "err a", "err " + end, "err c", "out " + end, "err " + end}, [][]string{{"err a"}, {"out b", "err c"}}},
		{"text before the sentinel without a newline", []string{"out a" + end, "err " + end}, [][]string{{"out a"}}},
		{"text after it", []string{"out " + end + "a", "err " + end}, [][]string{nil, {"out a"}}},
		{"two sentinels in a line", []string{"out a" + end + "b" + end, "err " + end + end}, [][]string{{"out a"}, {"out b"}}},
		{"empty lines are lines", []string{"out ", "out ", "out " + end, "err " + end}, [][]string{{"out ", "out "}}},
		{"no sentinel", []string{"out a", "err b"}, [][]string{{"out a", "err b"}, nil}},
		{"almost a sentinel", []string{"out " + end[1:], "out " + end, "err " + end}, [][]string{{"out " + end[1:]}}},
	} {
		l := newLogs()
		for _, line := range c.lines {
			if err := l.add(time.Now(), wire.Log{Stream: "std" + line[:3], Text: line[4:]}); err != nil {
				t.Fatal(err)
			}
		}
		for i, want := range c.takes {
			if got := texts(l.take(now(), nil)); !slices.Equal(got, want) {
				t.Errorf("%s: take %d is %q, want %q", c.name, i, got, want)
			}
		}
	}
}

func TestTakeWaitsForBothSentinels(t *testing.T) {
	l := newLogs()
	l.add(time.Now(), wire.Log{Stream: "stdout", Text: "a"})
	l.add(time.Now(), wire.Log{Stream: "stdout", Text: end})
	taken := make(chan []string)
	go func() { taken <- texts(l.take(context.Background(), nil)) }()
	select {
	case got := <-taken:
		t.Fatalf("%q was taken before stderr ended", got)
	default:
	}
	l.add(time.Now(), wire.Log{Stream: "stderr", Text: "b"})
	l.add(time.Now(), wire.Log{Stream: "stderr", Text: end})
	if got := <-taken; !slices.Equal(got, []string{"out a", "err b"}) {
		t.Errorf("taken: %q", got)
	}
}

func TestTakeEndsWithTheGuest(t *testing.T) {
	l, gone := newLogs(), make(chan struct{})
	l.add(time.Now(), wire.Log{Stream: "stderr", Text: "Traceback"})
	close(gone)
	if got := texts(l.take(context.Background(), gone)); !slices.Equal(got, []string{"err Traceback"}) {
		t.Errorf("taken: %q", got)
	}
}

// An image need not write OpenWhisk's sentinels. Its answers wait a second for them, and say so.
func TestARuntimeWithoutSentinels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConn(func() {}, newBucket(nodeRate, nodeBurst))
		log := func(stream, text string) {
			if err := c.logs.add(time.Now(), wire.Log{Stream: stream, Text: text}); err != nil {
				t.Fatal(err)
			}
		}
		take := func(waits time.Duration, want ...string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			begin := time.Now()
			if got := texts(c.Logs(ctx)); !slices.Equal(got, want) || time.Since(begin) != waits {
				t.Errorf("after %v: %q, want %q after %v", time.Since(begin), got, want, waits)
			}
		}
		for range 2 {
			log("stdout", "hello")
			take(sentinelsWithin, "out hello", "err "+incomplete)
		}
		go func() {
			time.Sleep(sentinelsWithin / 2)
			log("stdout", end)
			log("stderr", end)
		}()
		take(sentinelsWithin / 2)
		take(time.Minute, "err "+incomplete) // it writes them
	})
}

func TestFlood(t *testing.T) {
	for _, text := range []string{"", "x", strings.Repeat("y", wire.MaxText), end, "z" + end} {
		l := newLogs()
		for range 3 * LogLimit / lineCost {
			l.add(time.Now(), wire.Log{Stream: "stdout", Text: text})
			if l.cost > LogLimit+lineCost || len(l.entries) > LogLimit/lineCost+3 {
				t.Fatalf("%.10q: %d entries that cost %d", text, len(l.entries), l.cost)
			}
		}
	}
}

func TestTruncation(t *testing.T) {
	l := newLogs()
	line := strings.Repeat("x", 1000)
	for range 2 * LogLimit / len(line) {
		l.add(time.Now(), wire.Log{Stream: "stdout", Text: line})
	}
	for _, stream := range streams {
		l.add(time.Now(), wire.Log{Stream: stream, Text: end})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got := l.take(ctx, nil)
	if ctx.Err() != nil {
		t.Fatal("the sentinels after a flood are lost")
	}
	last := got[len(got)-1].Text
	if len(got) > LogLimit/len(line)+1 || !strings.HasPrefix(last, "Logs were truncated") {
		t.Errorf("%d lines, the last %q", len(got), last)
	}
	l.add(time.Now(), wire.Log{Stream: "stdout", Text: "next"})
	if got := texts(l.take(now(), nil)); !slices.Equal(got, []string{"out next"}) {
		t.Errorf("the activation after the flood logs %q", got)
	}
}

func TestBadLines(t *testing.T) {
	for _, bad := range []wire.Log{{Stream: "stdin"}, {}, {Stream: "stdout", Text: strings.Repeat("x", 3*wire.MaxText+1)}} {
		if newLogs().add(time.Now(), bad) == nil {
			t.Errorf("a line of %d bytes on %q is taken", len(bad.Text), bad.Stream)
		}
	}
}

// Below the limit no line is lost, repeated, moved within its stream or given to another activation.
func TestActivationsKeepTheirLines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLogs()
		activations := rapid.IntRange(1, 4).Draw(t, "activations")
		queues := [2][]string{}
		want := make([][2][]string, activations)
		for a := range activations {
			for s := range streams {
				for i := range rapid.IntRange(0, 5).Draw(t, "lines") {
					text := fmt.Sprintf("%d/%s/%d", a, streams[s], i)
					queues[s] = append(queues[s], text)
					want[a][s] = append(want[a][s], text)
				}
				queues[s] = append(queues[s], end)
			}
		}
		for len(queues[0])+len(queues[1]) > 0 {
			s := rapid.IntRange(0, 1).Draw(t, "stream")
			if len(queues[s]) == 0 {
				s = 1 - s
			}
			l.add(time.Now(), wire.Log{Stream: streams[s], Text: queues[s][0]})
			queues[s] = queues[s][1:]
		}
		for a := range activations {
			var got [2][]string
			for _, line := range l.take(context.Background(), nil) {
				s := slices.Index(streams[:], line.Stream)
				got[s] = append(got[s], line.Text)
			}
			for s := range streams {
				if !slices.Equal(got[s], want[a][s]) {
					t.Fatalf("activation %d, %s: %q, want %q", a, streams[s], got[s], want[a][s])
				}
			}
		}
		if l.cost != 0 || len(l.entries) != 0 {
			t.Fatalf("left: %d entries that cost %d", len(l.entries), l.cost)
		}
	})
}
