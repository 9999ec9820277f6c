package guest

import (
	"io"
	"sync"
	"time"
)

// Decoding costs the host time, and guests must not choose how much. So each guest has a share that
// it is sure of: more than a guest says that only starts and works. Beyond its share a guest is
// heard at hearRate at most, and all guests of the node together at nodeRate. A guest that says
// little is thus heard at once, however loud the others are. One that says too much waits, by
// vsock's own flow control, and waiting guests are heard in turn, by the same amount.
const (
	hearRate  = 2 << 20 // bytes a second
	hearBurst = 2 << 20 // as much as two takes of logs
	sureRate  = 16 << 10
	sureBurst = 64 << 10
	nodeRate  = 8 << 20 // decoding that much takes half a core at worst, of the shortest lines
	nodeBurst = 32 << 20
	hearMost  = 4 << 10 // at once
)

// A bucket lets bytes pass at a rate, and a burst of them at any rate.
type bucket struct {
	rate, burst int

	mu    sync.Mutex
	level float64 // bytes that may pass now; less than none: they have passed already
	at    time.Time
}

func newBucket(rate, burst int) *bucket {
	return &bucket{rate: rate, burst: burst, level: float64(burst)}
}

// fill is called with mu held.
func (b *bucket) fill(now time.Time) {
	if !b.at.IsZero() {
		b.level = min(float64(b.burst), b.level+now.Sub(b.at).Seconds()*float64(b.rate))
	}
	b.at = now
}

// takes books n bytes if they may pass now.
func (b *bucket) takes(now time.Time, n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	if b.level < float64(n) {
		return false
	}
	b.level -= float64(n)
	return true
}

// charge books n bytes that have passed and returns for how long no more should.
func (b *bucket) charge(now time.Time, n int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	b.level -= float64(n)
	return time.Duration(-b.level / float64(b.rate) * float64(time.Second))
}

// throttled is a reader that holds its peer to its rates.
type throttled struct {
	io.Reader
	gone            <-chan struct{} // ends a wait
	own, sure, node *bucket
}

func newThrottled(r io.Reader, gone <-chan struct{}, node *bucket) *throttled {
	return &throttled{r, gone, newBucket(hearRate, hearBurst), newBucket(sureRate, sureBurst), node}
}

func (t *throttled) Read(p []byte) (int, error) {
	n, err := t.Reader.Read(p[:min(len(p), hearMost)])
	if wait := t.charge(time.Now(), n); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-t.gone:
		}
	}
	return n, err
}

// charge books n bytes read now and returns for how long no more should be read.
func (t *throttled) charge(now time.Time, n int) time.Duration {
	wait := t.own.charge(now, n)
	if t.sure.takes(now, n) {
		return wait
	}
	return max(wait, t.node.charge(now, n))
}
