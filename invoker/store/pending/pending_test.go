package pending

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/storetest"
	"github.com/fastiov/fastiov/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

var quiet = slog.New(slog.DiscardHandler)

func record(id string) *store.Record {
	return &store.Record{
		Indexed: store.Indexed{ID: id, Namespace: "guest", Name: "a"}, Body: store.Bytes("body"),
	}
}

var size = record("x").Size()

func TestWakesInTimeForTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var woken []time.Duration
		p := New(Limit, func() { woken = append(woken, time.Since(began)) }, quiet)
		defer p.Close()
		p.Add(record("a"))
		time.Sleep(store.Window / 4)
		p.Add(record("b"))
		time.Sleep(store.Window)
		synctest.Wait()
		if fmt.Sprint(woken) != fmt.Sprint([]time.Duration{gather}) {
			t.Errorf("woken at %v", woken)
		}
	})
}

func TestAddWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var woken atomic.Int64
		p := New(2*size, func() { woken.Add(1) }, quiet)
		p.Add(record("a"))
		p.Add(record("b"))
		var added atomic.Bool
		go func() { p.Add(record("c")); added.Store(true) }()
		synctest.Wait()
		if added.Load() || woken.Load() != 1 {
			t.Fatalf("added %v, woken %d times", added.Load(), woken.Load())
		}
		p.Done(1, 0)
		synctest.Wait()
		if !added.Load() || p.Left() != 2 || p.Lost() != 0 {
			t.Errorf("added %v, %d left, %d lost", added.Load(), p.Left(), p.Lost())
		}
		go p.Add(record("d"))
		synctest.Wait()
		p.Close()
		synctest.Wait()
		if p.Lost() != 1 {
			t.Errorf("lost %d", p.Lost())
		}
	})
}

func TestNobodyWaitsForAStoreThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var woken atomic.Int64
		p := New(2*size, func() { woken.Add(1) }, quiet)
		defer p.Close()
		p.Add(record("a"))
		p.Add(record("b"))
		go p.Add(record("c"))
		synctest.Wait()
		p.Fail(errors.New("full"))
		synctest.Wait()
		p.Add(record("d"))
		if p.Lost() != 2 || len(p.All()) != 0 || p.Get("a") == nil {
			t.Errorf("lost %d, to write %d", p.Lost(), len(p.All()))
		}
		woken.Store(0)
		time.Sleep(again)
		synctest.Wait()
		if woken.Load() != 1 || len(p.All()) != 2 {
			t.Errorf("woken %d times, to write %d", woken.Load(), len(p.All()))
		}
		p.Done(2, 0)
		p.Add(record("e"))
		if p.Lost() != 2 || p.Left() != 1 {
			t.Errorf("lost %d, left %d", p.Lost(), p.Left())
		}
	})
}

// Whatever happens, an added record is in the queue, was removed by Done, or was lost, and memory
// is bounded.
func TestNothingVanishes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const room = 5
		p := New(room*size, func() {}, quiet)
		defer p.Close()
		added, done := 0, 0
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				if p.Left() == room && p.failed == nil {
					t.Skip("it would wait")
				}
				p.Add(record(fmt.Sprint(added)))
				added++
			},
			"done": func(t *rapid.T) {
				n := rapid.IntRange(0, len(p.All())).Draw(t, "n")
				p.Done(n, 0)
				done += n
			},
			"fail": func(*rapid.T) { p.Fail(errors.New("full")) },
			"": func(t *rapid.T) {
				if p.Left()+done+int(p.Lost()) != added || p.Left() > room ||
					p.size != p.Left()*size || len(p.byID) != p.Left() {
					t.Fatalf("added %d: %d here (%d bytes), %d done, %d lost",
						added, p.Left(), p.size, done, p.Lost())
				}
			},
		})
	})
}

func TestPage(t *testing.T) {
	pending := map[string]*store.Record{"e": nil, "b": nil}
	all := []string{"f", "d", "c", "a"}
	for skip, want := range []string{"fe", "ed", "dc", "cb", "ba", "a", "", ""} {
		from, most := Stored(pending, skip, 2)
		if most > 2+len(pending) {
			t.Errorf("skip %d: %d are asked for", skip, most)
		}
		stored := all[min(from, len(all)):min(from+most, len(all))]
		if got := strings.Join(Page(pending, stored, skip, 2), ""); got != want {
			t.Errorf("skip %d: %s, want %s", skip, got, want)
		}
	}
}

func BenchmarkPendingRecord(b *testing.B) {
	p := New(Limit, func() {}, quiet)
	defer p.Close()
	storetest.PendingBytes(b, func(r *store.Record) { p.Add(r) })
}
