package store

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// latest is the time in the last id, in nanoseconds since 1970.
var latest atomic.Int64

// NewID returns a fresh activation id: 32 hexadecimal digits, half of them the time and half of
// them random. It must be unique, not secret. Each id is higher than the one before, even where the
// clock was set back, so that a store finds a record among its neighbours.
func NewID() string {
	var id [16]byte
	for {
		last := latest.Load()
		next := max(time.Now().UnixNano(), last+1)
		if latest.CompareAndSwap(last, next) {
			binary.BigEndian.PutUint64(id[:8], uint64(next))
			break
		}
	}
	binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	var text [32]byte
	hex.Encode(text[:], id[:])
	return string(text[:])
}

// RiseAbove makes later ids higher than an id that NewID returned in another process. Any other id
// changes nothing.
func RiseAbove(id string) {
	const centuries = 1 << 62 // further ahead than any clock
	raw, err := hex.DecodeString(id)
	if err != nil || len(raw) != 16 {
		return
	}
	seen := binary.BigEndian.Uint64(raw)
	for last := latest.Load(); seen < centuries && int64(seen) > last; last = latest.Load() {
		latest.CompareAndSwap(last, int64(seen))
	}
}
