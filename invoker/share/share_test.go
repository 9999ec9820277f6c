package share

import (
	"errors"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// Whatever the users take and give, no user gets more than it leaves free; and while n others hold
// something, a user that holds nothing gets half of a 2^n-th part of the whole.
func TestNobodyTakesAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := Of(rapid.Int64Range(0, 1000).Draw(t, "size"))
		parts := make([]Part, rapid.IntRange(1, 5).Draw(t, "parts"))
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			p := &parts[rapid.IntRange(0, len(parts)-1).Draw(t, "part")]
			n := rapid.Int64Range(0, 400).Draw(t, "n")
			if rapid.Bool().Draw(t, "all") {
				n = max((w.Size()-w.Used()-p.Held())/2, 0) // all that this part can have
			}
			if rapid.Bool().Draw(t, "gives") {
				w.Give(p, min(n, p.Held()))
				continue
			}
			held, free := p.Held(), w.Size()-w.Used()
			err := w.Take(p, n)
			if fits := held+n <= free-n; fits != (err == nil) {
				t.Fatalf("%d more to %d held, %d free: %v", n, held, free, err)
			}
			if errors.Is(err, ErrWhole) != (err != nil && n > free-n) {
				t.Fatalf("%d more, %d free: %v", n, free, err)
			}
		}
		var others, sum int64
		for i := range parts {
			if sum += parts[i].Held(); parts[i].Held() > 0 {
				others++
			}
		}
		if w.Used() != sum {
			t.Fatalf("%d used, %d held", w.Used(), sum)
		}
		var fresh Part
		if err := w.Take(&fresh, w.Size()>>(others+1)); err != nil {
			t.Fatalf("%d of %d are used by %d, and nothing is left: %v", sum, w.Size(), others, err)
		}
	})
}

// Goroutines that take for one part at once get no more than a single one.
func TestTakingAtOnceGetsNoMore(t *testing.T) {
	const size, n = 1000, 3
	for range 200 {
		w := Of(size)
		var p Part
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				for range 50 {
					if w.Take(&p, n) == nil && w.Used() > size {
						t.Error("more is used than there is")
					}
				}
			})
		}
		all.Wait()
		if p.Held() > size/2 || p.Held() != w.Used() {
			t.Fatalf("%d held, %d used of %d", p.Held(), w.Used(), size)
		}
	}
}

func BenchmarkTakeAndGive(b *testing.B) {
	w := Of(1 << 40)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var p Part
		for pb.Next() {
			if err := w.Take(&p, 100); err != nil {
				b.Fatal(err)
			}
			w.Give(&p, 100)
		}
	})
}
