package openwhisk

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

const end = Sentinel

var streams = [...]string{"stdout", "stderr"}

func newLogs() *logs { return &logs{ended: make(chan struct{}), silent: new(atomic.Bool)} }

// say has a runtime write a line.
func (l *logs) say(stream, text string) {
	l.add(wire.LogLine{Time: time.Now(), Stream: stream, Text: text})
}

func texts(lines []wire.LogLine) []string {
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
			l.say("std"+line[:3], line[4:])
		}
		for i, want := range c.takes {
			if got := texts(l.cutOff()); !slices.Equal(got, want) {
				t.Errorf("%s: take %d is %q, want %q", c.name, i, got, want)
			}
		}
	}
}

func TestTakeWaitsForBothSentinels(t *testing.T) {
	l := newLogs()
	l.say("stdout", "a")
	l.say("stdout", end)
	taken := make(chan []string)
	go func() { taken <- texts(l.take(context.Background(), time.Time{})) }()
	select {
	case got := <-taken:
		t.Fatalf("%q was taken before stderr ended", got)
	default:
	}
	l.say("stderr", "b")
	l.say("stderr", end)
	if got := <-taken; !slices.Equal(got, []string{"out a", "err b"}) {
		t.Errorf("taken: %q", got)
	}
}

func TestTakeEndsWithTheGuest(t *testing.T) {
	gone := make(chan struct{})
	l := newLogs()
	l.ended = gone
	l.say("stderr", "Traceback")
	close(gone)
	got := texts(l.take(context.Background(), time.Time{}))
	if !slices.Equal(got, []string{"err Traceback"}) {
		t.Errorf("taken: %q", got)
	}
}

// An image need not write OpenWhisk's sentinels. Its answers wait for them, the first one of all
// its sandboxes longer, and say so.
func TestARuntimeWithoutSentinels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogs()
		take := func(waits time.Duration, want ...string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			begin := time.Now()
			got := texts(l.take(ctx, time.Time{}))
			if !slices.Equal(got, want) || time.Since(begin) != waits {
				t.Errorf("after %v: %q, want %q after %v", time.Since(begin), got, want, waits)
			}
		}
		for _, within := range []time.Duration{firstWithin, thenWithin, thenWithin} {
			l.say("stdout", "hello")
			take(within, "out hello", "err "+incomplete)
		}
		l = &logs{ended: make(chan struct{}), silent: l.silent} // of another sandbox
		take(thenWithin, "err "+incomplete)
		go func() {
			time.Sleep(thenWithin / 2)
			l.say("stdout", end)
			l.say("stderr", end)
		}()
		take(thenWithin / 2)
		take(time.Minute, "err "+incomplete) // it writes them
		l = &logs{ended: make(chan struct{}), silent: l.silent}
		take(firstWithin, "err "+incomplete) // so its image does
	})
}

// A call that ends before a runtime could be known says nothing of its image.
func TestACallThatIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogs()
		begin := time.Now()
		l.take(t.Context(), time.Now().Add(100*time.Millisecond))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		l.take(ctx, time.Time{})
		if waited := time.Since(begin); waited != 200*time.Millisecond {
			t.Errorf("cut off after %v", waited)
		}
		l.take(t.Context(), time.Time{})
		if waited := time.Since(begin); waited != 200*time.Millisecond+firstWithin {
			t.Errorf("not cut off, it was given up after %v", waited)
		}
	})
}

// On a busy node the lines of a first activation come long after its answer. They are its own.
func TestTheFirstActivationOnABusyNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogs()
		go func() {
			time.Sleep(5 * time.Second)
			l.say("stdout", "hello")
			time.Sleep(4 * time.Second)
			l.say("stdout", end)
			l.say("stderr", end)
		}()
		got := texts(l.take(t.Context(), time.Time{}))
		if !slices.Equal(got, []string{"out hello"}) {
			t.Errorf("taken: %q", got)
		}
	})
}

func TestFlood(t *testing.T) {
	for _, text := range []string{"", "x", strings.Repeat("y", wire.MaxText), end, "z" + end} {
		l := newLogs()
		for range 3 * LogLimit / lineCost {
			l.say("stdout", text)
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
		l.say("stdout", line)
	}
	for _, stream := range streams {
		l.say(stream, end)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got := l.take(ctx, time.Time{})
	if ctx.Err() != nil {
		t.Fatal("the sentinels after a flood are lost")
	}
	last := got[len(got)-1].Text
	if len(got) > LogLimit/len(line)+1 || !strings.HasPrefix(last, "Logs were truncated") {
		t.Errorf("%d lines, the last %q", len(got), last)
	}
	l.say("stdout", "next")
	if got := texts(l.cutOff()); !slices.Equal(got, []string{"out next"}) {
		t.Errorf("the activation after the flood logs %q", got)
	}
}

// Below the limit no line is lost, repeated, moved within its stream or given to another
// activation.
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
			l.say(streams[s], queues[s][0])
			queues[s] = queues[s][1:]
		}
		for a := range activations {
			var got [2][]string
			for _, line := range l.take(context.Background(), time.Time{}) {
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
