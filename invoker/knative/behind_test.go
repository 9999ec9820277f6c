package knative

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/invoker/store"
)

// A disk notes which revision each put has taken the place of, and what is said of it, and fails as
// it is told.
type disk struct {
	store.Store
	mu    sync.Mutex
	puts  []string
	said  strings.Builder
	fails error
}

func (d *disk) Put(_ context.Context, doc store.Doc, _ []byte, _ store.Space) (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.puts = append(d.puts, fmt.Sprint(doc.Name, doc.Revision))
	return doc.Revision + 10, d.fails
}

func (d *disk) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.said.Write(p)
}

func (d *disk) failing(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fails = err
}

// What is noted is written a moment later, once for several changes. What the disk does not take is
// said, and written again; what is gone meanwhile is not; a world that is closed waits for none.
func TestWhatIsWrittenBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, w := &disk{}, newWorld()
		w.opened, w.store, w.log = true, d, slog.New(slog.NewTextHandler(d, nil))
		at := ref{routes, name{"ann", "a"}}
		if err := w.see(store.Doc{Key: at.key(), Revision: 1,
			Body: []byte(`{"metadata":{"name":"a","namespace":"ann"}}`)}); err != nil {
			t.Fatal(err)
		}
		note := func() {
			t.Helper()
			old, _ := w.now(at)
			o := old.object.DeepCopyObject().(object)
			body, err := document(routes, o)
			if err == nil {
				err = w.note(o, body, old)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		has := func(what, said string, kept uint64, puts ...string) {
			t.Helper()
			synctest.Wait()
			_, now := w.now(at)
			d.mu.Lock()
			defer d.mu.Unlock()
			if words := d.said.String(); !slices.Equal(d.puts, puts) || now != kept ||
				(words == "") != (said == "") || !strings.Contains(words, said) {
				t.Errorf("%s: the puts are %s, %d is kept, said is %q", what, d.puts, now, &d.said)
			}
			d.said.Reset()
		}
		w.wrote.Go(w.writeLater)
		note()
		note()
		time.Sleep(laterBy - 1)
		has("before the moment", "", 1)
		time.Sleep(time.Nanosecond)
		has("then", "", 11, "a1")

		d.failing(errors.New("the disk is full"))
		note()
		time.Sleep(laterBy)
		has("what fails", "the disk is full", 11, "a1", "a11")
		d.failing(nil)
		time.Sleep(time.Second + laterBy)
		has("a second later", "", 21, "a1", "a11", "a11")
		time.Sleep(time.Minute)
		has("and not again", "", 21, "a1", "a11", "a11")

		d.failing(fmt.Errorf("as others say: %w", store.ErrConflict))
		note()
		time.Sleep(time.Minute)
		has("what is gone", "", 21, "a1", "a11", "a11", "a21")

		d.failing(errors.New("the disk is away"))
		note()
		begun := time.Now()
		w.close()
		has("as the world is closed", "the disk is away", 21, "a1", "a11", "a11", "a21", "a21")
		if took := time.Since(begun); took > 0 {
			t.Errorf("that takes %v", took)
		}
	})
}

// An object that has changed since is not noted in the place of what it is now.
func TestAnOldStateIsNotNoted(t *testing.T) {
	w := newWorld()
	w.opened = true
	at := ref{routes, name{"ann", "a"}}
	see := func(body string) {
		t.Helper()
		if err := w.see(store.Doc{Key: at.key(), Revision: 1, Body: []byte(body)}); err != nil {
			t.Fatal(err)
		}
	}
	see(`{"metadata":{"name":"a","namespace":"ann"}}`)
	old, _ := w.now(at)
	note := func() error {
		o := old.object.DeepCopyObject().(object)
		body, err := document(routes, o)
		if err != nil {
			t.Fatal(err)
		}
		return w.note(o, body, old)
	}
	see(`{"metadata":{"name":"a","namespace":"ann","labels":{"new":"1"}}}`)
	if err := note(); err == nil || !strings.Contains(err.Error(), "has been modified") {
		t.Errorf("in the place of another: %v", err)
	}
	if now, _ := w.now(at); now.labels["new"] != "1" || len(w.later) > 0 {
		t.Errorf("then it is %v, and %d are to be written", now.labels, len(w.later))
	}
	if err := w.see(store.Doc{Key: at.key(), Revision: 2}); err != nil {
		t.Fatal(err)
	}
	if err := note(); err == nil {
		t.Error("what is gone is noted")
	}
}
