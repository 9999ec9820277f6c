package guest

import (
	"io"
	"time"
)

// A guest is heard at this rate, and at any rate for as much as two takes of logs; more than that it waits, by vsock's own flow control.
const (
	hearRate  = 2 << 20 // bytes a second
	hearBurst = 2 << 20
)

// throttled is a reader that holds its peer to hearRate: decoding costs the host time, and a guest must not choose how much.
type throttled struct {
	io.Reader
	gone <-chan struct{} // ends a wait

	since time.Time
	spent time.Duration // what the bytes read since then should have taken
}

func (t *throttled) Read(p []byte) (int, error) {
	n, err := t.Reader.Read(p)
	now := time.Now()
	if wait := t.charge(now, n); wait > 0 {
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
	passed := now.Sub(t.since)
	if t.since.IsZero() || passed > t.spent {
		passed, t.spent = 0, 0
	}
	t.spent += time.Duration(n)*time.Second/hearRate - passed
	t.since = now
	return t.spent - hearBurst*time.Second/hearRate
}
