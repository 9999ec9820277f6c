package storetest

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/store"
)

// Benchmark measures promises and records. fsyncs returns the number of the store's fsyncs so far;
// it is nil where that cannot be measured.
func Benchmark(b *testing.B, fresh Fresh, fsyncs func(store.Store) int64) {
	for _, callers := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("accept/callers=%d", callers), func(b *testing.B) {
			s := fresh()()
			defer closeStore(b, s)
			acceptAll(b, s, 0, callers) // warm up
			before := int64(0)
			if fsyncs != nil {
				before = fsyncs(s)
			}
			b.ResetTimer()
			acceptAll(b, s, b.N, callers)
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "promises/s")
			if fsyncs != nil {
				b.ReportMetric(float64(fsyncs(s)-before)/float64(b.N), "fsyncs/promise")
			}
		})
	}
	b.Run("finish", func(b *testing.B) {
		s := fresh()()
		b.ReportAllocs()
		for i := range b.N {
			s.Finish(benchRecord(i))
		}
		closeStore(b, s) // everything is on the disk
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
	})
	b.Run("list", func(b *testing.B) {
		s := fresh()()
		defer closeStore(b, s)
		for i := range 10_000 {
			s.Finish(benchRecord(i))
		}
		for b.Loop() {
			list, err := List(s, context.Background(),
				store.Filter{Namespace: "guest", Name: "hello"}, 100, 30)
			if err != nil || len(list) != 30 {
				b.Fatal(len(list), err)
			}
		}
	})
}

func acceptAll(b *testing.B, s store.Store, n, callers int) {
	var wg sync.WaitGroup
	var next atomic.Int64
	body := make([]byte, 300)
	for range callers {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := s.Accept(context.Background(),
					store.Accepted{ID: store.NewID(), Invoker: "me",
						At: time.Now(), Body: body}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// benchRecord returns a record as large as that of a warm activation with a short result and a line
// of log.
func benchRecord(i int) *store.Record {
	index := store.Indexed{
		ID: fmt.Sprintf("%016x%016x", i, uint64(i)*0x9e3779b97f4a7c15), Namespace: "guest",
		Name:  "hello",
		Start: t0.Add(time.Duration(i) * time.Millisecond),
	}
	return &store.Record{Indexed: index, Body: Body(index.ID, 350)}
}

// PendingBytes measures how much memory a record takes until it is on the disk: add queues n of
// them.
func PendingBytes(b *testing.B, add func(*store.Record)) {
	const n = 5000
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range n {
		add(benchRecord(i))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "bytes/record")
	b.ReportMetric(0, "ns/op")
}
