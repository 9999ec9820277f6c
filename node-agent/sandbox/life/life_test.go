package life

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/fastiov/fastiov/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

var errDied = errors.New("died")

// tended returns a life whose teardown adds a word to the error that ended it.
func tended() *Life {
	l := New()
	go func() {
		<-l.Context().Done()
		l.Over(func(cause error) error { return fmt.Errorf("%w, explained", cause) })
	}()
	return l
}

func TestTheFirstCauseCounts(t *testing.T) {
	l := tended()
	if l.Err() != nil {
		t.Error("an error before the end")
	}
	l.End(errDied)
	l.Close()
	l.Close()
	if err := l.Err(); !errors.Is(err, errDied) || err.Error() != "died, explained" {
		t.Errorf("%v", err)
	}
}

func TestClosingIsNoError(t *testing.T) {
	l := tended()
	l.Close()
	l.End(errDied)
	if err := l.Err(); err != nil {
		t.Errorf("%v", err)
	}
}

func TestBegin(t *testing.T) {
	gone := errors.New("the caller went away")
	for name, c := range map[string]struct {
		boot func(l *Life, leave func()) error
		want error
	}{
		"works": {func(*Life, func()) error { return nil }, nil},
		"fails": {func(*Life, func()) error { return errDied }, errDied},
		"caller leaves": {func(l *Life, leave func()) error {
			leave()
			<-l.Done()
			return errors.New("woken")
		}, gone},
		"caller too late": {func(l *Life, leave func()) error { leave(); return nil }, gone},
		"dies meanwhile": {func(l *Life, _ func()) error {
			l.End(errDied)
			<-l.Done()
			return errors.New("woken")
		}, errDied},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			l := tended()
			err := l.Begin(ctx, func() error { return c.boot(l, func() { cancel(gone) }) })
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if c.want == nil {
				l.Close()
			}
			<-l.Done()
			cancel(nil)
		})
	}
}
