package knative

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/fastiov/fastiov/invoker/lasting"
)

// A watcher that wants it is told so often how far it is.
const bookmarkEvery = time.Minute

// A watch ends after this time, or up to twice as much; its client goes on with another. So clients
// that came at once do not come again at once.
const watchFor = 30 * time.Minute

// After it was sent something, a watcher rests for so long: what happens close together is sent as
// one. So many bytes of it are written at once.
const (
	betweenParts = 2 * time.Millisecond
	mostWritten  = 32 << 10
)

// mostWatches bounds the watches of one namespace.
const mostWatches = 256

// A feed is one watcher's way to its client.
type feed struct {
	*call
	kind   *kind
	choice choice
	table  bool
	answer *lasting.Answer
	lines  []byte // that are not written yet
}

// watch sends the objects of a kind as they change, from a revision on. Without one it first sends
// those that there are. A watcher reads the events at its own pace; one that falls behind too far
// is told so, and delays nobody. Its key is looked at before each event.
func (c *call) watch(k *kind, choice choice, how metav1.ListOptions) error {
	at, err := versionIn(how.ResourceVersion)
	if err != nil {
		return err
	}
	initial := ptr.Deref(how.SendInitialEvents, false)
	if now := c.world.reached(); initial && at > now {
		return tooLarge(at, now)
	}
	leave, err := c.watches.enter(c.user.Namespace)
	if err != nil {
		return err
	}
	defer leave()
	answer := lasting.Begin(c.w, bookmarkEvery)
	f := &feed{call: c, kind: k, choice: choice, table: asTable(c.r), answer: answer}
	defer answer.Limit()
	c.w.Header().Set("Content-Type", "application/json")
	err = answer.Send(func() error {
		if at != 0 && !initial {
			return nil
		}
		var all []*entry
		all, at = c.world.list(k, c.user.Namespace)
		for _, e := range all {
			if choice.takes(e.encoded, e.itself) {
				f.send("ADDED", e.encoded)
			}
		}
		if initial {
			f.bookmark(at, map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		}
		return f.write()
	})
	if err != nil {
		return nil
	}
	longest := watchFor + rand.N(watchFor)
	if seconds := ptr.Deref(how.TimeoutSeconds, 0); seconds > 0 &&
		seconds < int64(longest.Seconds()) {
		longest = time.Duration(seconds) * time.Second
	}
	over := time.After(longest)
	bookmarks := time.NewTicker(bookmarkEvery)
	defer bookmarks.Stop()
	for {
		events, more, err := c.world.since(at, c.user.Namespace)
		if err != nil {
			answer.Limit()
			return f.expired()
		}
		if user, err := c.identify(c.r); err != nil || user.Namespace != c.user.Namespace {
			return nil // the key was taken back; a new watch is told why
		}
		if len(events) > 0 {
			at = events[len(events)-1].revision
		}
		events = slices.DeleteFunc(events, f.passes)
		if len(events) > 0 || len(f.lines) > 0 {
			err = answer.Send(func() error {
				for _, e := range events {
					f.tell(e)
				}
				return f.write()
			})
			if err != nil {
				return nil
			}
			time.Sleep(betweenParts)
		}
		f.lines = nil // a watcher may be idle for long
		select {
		case <-more:
		case <-bookmarks.C:
			if how.AllowWatchBookmarks {
				f.bookmark(at, nil)
			}
		case <-over:
			return nil
		case <-c.r.Context().Done():
			return nil
		case <-c.closed:
			return nil
		}
	}
}

// passes reports whether an event is of no concern to any watcher of the kind in the namespace.
func (f *feed) passes(e *logged) bool {
	return e.kind != f.kind || e.name.namespace != f.user.Namespace
}

// tell sends an event if it is one of the watcher's objects: an object that is not chosen any more
// is gone for it, and one that now is has come.
func (f *feed) tell(e *logged) {
	was := e.before != nil && f.takes(e.before)
	is := e.what != "DELETED" && f.takes(e.encoded)
	switch {
	case was && is:
		f.send("MODIFIED", e.encoded)
	case is:
		f.send("ADDED", e.encoded)
	case was:
		f.send("DELETED", e.encoded)
	}
}

func (f *feed) takes(e *encoded) bool { return f.choice.takes(e, e.itself) }

func (f *feed) send(what string, e *encoded) {
	body := e.body
	if f.table {
		body, _ = json.Marshal(f.kind.table(metav1.ListMeta{
			ResourceVersion: strconv.FormatUint(e.revision, 10)}, []*entry{e.decoded()}))
	}
	f.line(what, body)
}

func (f *feed) line(what string, body []byte) {
	f.lines = append(append(append(f.lines, `{"type":"`...), what...), `","object":`...)
	f.lines = append(append(f.lines, body...), "}\n"...)
	if len(f.lines) >= mostWritten {
		_ = f.write() // whoever writes the last of them is told
	}
}

// write writes the lines that are not written yet. Each write has the time of a part: a list may
// have many.
func (f *feed) write() error {
	f.answer.Limit()
	_, err := f.w.Write(f.lines)
	if f.lines = f.lines[:0]; cap(f.lines) > 2*mostWritten {
		f.lines = nil
	}
	return err
}

func (f *feed) bookmark(revision uint64, annotations map[string]string) {
	o := f.kind.make()
	o.GetObjectKind().SetGroupVersionKind(f.kind.gvk())
	o.SetResourceVersion(strconv.FormatUint(revision, 10))
	o.SetAnnotations(annotations)
	body, _ := json.Marshal(o)
	f.line("BOOKMARK", body)
}

func (f *feed) expired() error {
	status := errExpired.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	body, _ := json.Marshal(status)
	f.line("ERROR", body)
	return ignore(f.write())
}
