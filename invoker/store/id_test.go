package store

import (
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestIDsRise(t *testing.T) {
	defer latest.Store(latest.Load())
	future := time.Now().Add(time.Hour).UnixNano()
	latest.Store(future)
	id := NewID()
	latest.Store(0)
	for _, other := range []string{"", "p1", strings.Repeat("f", 32), strings.Repeat("0", 32)} {
		RiseAbove(other)
	}
	if own := NewID(); own >= id || latest.Load() > future {
		t.Errorf("%s is of the future", own)
	}
	RiseAbove(id)
	var all [2][]string
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			for range 1000 {
				all[i] = append(all[i], NewID())
			}
		})
	}
	wg.Wait()
	for _, ids := range all {
		if !slices.IsSorted(ids) || ids[0] <= id {
			t.Errorf("%s … after %s do not rise", ids[:3], id)
		}
	}
	both := slices.Compact(slices.Sorted(slices.Values(slices.Concat(all[0], all[1]))))
	if raw, err := hex.DecodeString(both[0]); len(both) != 2000 || len(raw) != 16 || err != nil {
		t.Errorf("%d of 2000 ids differ; %v", len(both), err)
	}
}

func BenchmarkNewID(b *testing.B) {
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			NewID()
		}
	})
}
