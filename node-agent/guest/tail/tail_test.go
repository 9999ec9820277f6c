package tail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func text(n int) wire.LogLine { return wire.LogLine{Stream: "stdout", Text: fmt.Sprint(n)} }

func now() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// Whatever is written and read in which order, a reader sees each line once and in order, or learns
// that it has missed it.
func TestReadersMissNothingUnsaid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := New()
		wrote := 0
		type reader struct {
			*Reader
			next int // the line that it should see
		}
		join := func() *reader { return &reader{l.Read(), int(l.first)} }
		readers := []*reader{join()}
		size := rapid.SampledFrom([]int{1, 1000, keep / 3, 2 * keep})
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				line := text(wrote)
				line.Text += strings.Repeat(" ", size.Draw(t, "size"))
				l.Add(line)
				wrote++
			},
			"read": func(t *rapid.T) {
				r := rapid.SampledFrom(readers).Draw(t, "reader")
				line, missed, err := r.Next(now())
				if err != nil {
					if r.next != wrote || !errors.Is(err, context.Canceled) {
						t.Fatalf("at line %d of %d: %v", r.next, wrote, err)
					}
					return
				}
				var n int
				fmt.Sscan(line.Text, &n)
				if n != r.next+int(missed) {
					t.Fatalf("line %d with %d missed, want %d", n, missed, r.next)
				}
				r.next = n + 1
			},
			"join": func(*rapid.T) { readers = append(readers, join()) },
			"": func(t *rapid.T) {
				if l.cost > keep && len(l.lines) > 1 || len(l.lines) > keep/lineCost {
					t.Fatalf("%d lines that cost %d are kept", len(l.lines), l.cost)
				}
			},
		})
	})
}

func TestAReaderWaitsForTheNextLineAndTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New()
		l.Add(text(0))
		read := make(chan string)
		for range 2 {
			go func() {
				r := l.Read()
				for {
					line, _, err := r.Next(context.Background())
					if err != nil {
						read <- err.Error()
						return
					}
					read <- line.Text
				}
			}()
		}
		for _, want := range []string{"0", "1", io.EOF.Error()} {
			for range 2 {
				if got := <-read; got != want {
					t.Errorf("read %q, want %q", got, want)
				}
			}
			synctest.Wait()
			switch want {
			case "0":
				l.Add(text(1))
			case "1":
				l.End()
				l.End()
			}
		}
		l.Add(text(2))
		if line, _, err := l.Read().Next(now()); err != nil || line.Text != "0" {
			t.Errorf("a reader that comes after the end: %q, %v", line.Text, err)
		}
	})
}

func TestAWatcherSeesEveryLine(t *testing.T) {
	l := New()
	l.Add(text(0))
	seen := 0
	l.Watch(func(line wire.LogLine) {
		if line.Text != fmt.Sprint(seen) {
			t.Errorf("line %q, want %d", line.Text, seen)
		}
		seen++
	})
	for n := range 2 * keep / lineCost {
		l.Add(text(n + 1))
	}
	if seen != 1+2*keep/lineCost {
		t.Errorf("%d lines", seen)
	}
}

// A stream is copied line by line, to its end.
func TestCopy(t *testing.T) {
	l := New()
	long := strings.Repeat("x", wire.MaxText+1)
	l.Copy("stderr", strings.NewReader("one\n\n"+long+"\nlast"))
	var got []string
	l.Watch(func(line wire.LogLine) {
		if line.Stream != "stderr" || line.Time.IsZero() {
			t.Errorf("%+v", line)
		}
		got = append(got, line.Text)
	})
	if want := []string{"one", "", long[1:], "x", "last"}; !slices.Equal(got, want) {
		t.Errorf("got %.100q", got)
	}
}
