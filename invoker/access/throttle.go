package access

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/fastiov/fastiov/invoker/share"
)

// TooMany is the error of a call that exceeds a limit.
type TooMany struct{ Limit, Why string }

// The limits that a TooMany names.
const (
	CallsPerMinute   = "calls per minute"
	CallsAtOnce      = "calls at once"
	FiresPerMinute   = "fires per minute"
	ChangesPerMinute = "changes per minute"
	ReadsPerMinute   = "reads per minute"
	BytesAtOnce      = "bytes at once"
	BytesOfAll       = "bytes of all at once" // not only the caller's
)

func (t *TooMany) Error() string { return t.Why }

// A rate counts what happens in a minute of the clock. It is one word, so that callers do not wait
// for each other: the minute in the upper half and the count in the lower half.
type rate struct{ word atomic.Uint64 }

// add adds one to the count unless the limit is reached. Minutes are numbered from 1970.
func (r *rate) add(now time.Time, limit int) (count int, ok bool) {
	minute := uint64(now.Unix()/60) << 32
	for {
		old := r.word.Load()
		count := uint64(0)
		if old>>32<<32 == minute {
			count = old << 32 >> 32
		}
		if count >= uint64(limit) {
			return int(count), false
		}
		if r.word.CompareAndSwap(old, minute|(count+1)) {
			return int(count) + 1, true
		}
	}
}

// A Usage counts what a namespace uses. The zero value is unused.
type Usage struct {
	calls, fires, changes, reads rate
	underWay                     atomic.Int64
	requests                     atomic.Int64 // requests that may leave something in the namespace
	// its part of the bytes that all namespaces have sent and that are still in memory
	Bytes share.Part
}

// Call admits an invocation by its rate and by the calls under way; Done ends it.
func (u *Usage) Call(now time.Time, l Allowance) error {
	if count, ok := u.calls.add(now, l.InvocationsPerMinute); !ok {
		return &TooMany{
			CallsPerMinute,
			fmt.Sprintf("too many requests in this minute: %d, and %d are allowed",
				count, l.InvocationsPerMinute),
		}
	}
	if count := u.underWay.Add(1); count > int64(l.ConcurrentInvocations) {
		u.underWay.Add(-1)
		return &TooMany{
			CallsAtOnce,
			fmt.Sprintf("too many concurrent requests in flight: %d, and %d are allowed",
				count-1, l.ConcurrentInvocations),
		}
	}
	return nil
}

// Resume counts an invocation that was admitted before this process began; Done ends it too.
func (u *Usage) Resume() { u.underWay.Add(1) }

// Done ends an admitted invocation.
func (u *Usage) Done() { u.underWay.Add(-1) }

// Fire admits a trigger's fire.
func (u *Usage) Fire(now time.Time, l Allowance) error {
	if count, ok := u.fires.add(now, l.FiresPerMinute); !ok {
		return &TooMany{
			FiresPerMinute,
			fmt.Sprintf("too many triggers fired in this minute: %d, and %d are allowed",
				count, l.FiresPerMinute),
		}
	}
	return nil
}

// Change admits the change of an entity.
func (u *Usage) Change(now time.Time, l Allowance) error {
	if count, ok := u.changes.add(now, l.ChangesPerMinute); !ok {
		return &TooMany{ChangesPerMinute, fmt.Sprintf(
			"too many changes of entities in this minute: %d, and %d are allowed", count,
			l.ChangesPerMinute)}
	}
	return nil
}

// Read admits a request that reads entities or records.
func (u *Usage) Read(now time.Time, l Allowance) error {
	if count, ok := u.reads.add(now, l.ReadsPerMinute); !ok {
		return &TooMany{ReadsPerMinute, fmt.Sprintf(
			"too many reads in this minute: %d, and %d are allowed", count, l.ReadsPerMinute)}
	}
	return nil
}

// Leave ends a request that Enter let in.
func (u *Usage) Leave() { u.requests.Add(-1) }

// UnderWay returns how many admitted invocations have not ended.
func (u *Usage) UnderWay() int { return int(u.underWay.Load()) }
