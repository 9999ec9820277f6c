package embedded

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/storetest"
)

// bbolt syncs a transaction's pages, then its head.
const fsyncsPerCommit = 2

func BenchmarkStore(b *testing.B) {
	fresh := func() func() store.Store {
		dir, err := os.MkdirTemp(b.TempDir(), "")
		if err != nil {
			b.Fatal(err)
		}
		return func() store.Store { return open(b, filepath.Join(dir, "store")) }
	}
	storetest.Benchmark(b, fresh, func(s store.Store) int64 {
		return fsyncsPerCommit * s.(*Store).commits.Load()
	})
}

// BenchmarkFull measures records that displace others. The namespaces take turns; every second
// record is of the loudest one.
func BenchmarkFull(b *testing.B) {
	for _, namespaces := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("namespaces=%d", namespaces), func(b *testing.B) {
			s, err := Open(filepath.Join(b.TempDir(), "store"), 32<<20, quiet)
			if err != nil {
				b.Fatal(err)
			}
			finish := func(i int) {
				r := finished(i, 400)
				if i%2 == 0 {
					r.Namespace = fmt.Sprint("n", i/2%namespaces)
				}
				s.Finish(r)
			}
			const full = 80_000
			for i := range full {
				finish(i)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				finish(full + i)
			}
			closeIt(b, s)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}
