package embedded

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/storetest"
)

// A transaction of bbolt syncs its pages, then its head.
const fsyncsPerCommit = 2

func BenchmarkStore(b *testing.B) {
	fresh := func() func() store.Store {
		dir, err := os.MkdirTemp(b.TempDir(), "")
		if err != nil {
			b.Fatal(err)
		}
		return func() store.Store { return open(b, filepath.Join(dir, "store")) }
	}
	storetest.Benchmark(b, fresh, func(s store.Store) int64 { return fsyncsPerCommit * s.(*Store).commits.Load() })
}
