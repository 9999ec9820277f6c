// Package lasting sends answers that go on until their reader has had enough: watches, logs that
// are followed, the live page's feed.
package lasting

import (
	"net/http"
	"time"
)

// An Answer goes on for long. Each part of it has its time to be taken; between them there may be
// silence. HTTP/2 ends a stream when a write's deadline comes, also if nothing is being written.
type Answer struct {
	control *http.ResponseController
	within  time.Duration
}

// Begin returns the answer to a request that has been read, whose parts are each taken within a
// time.
func Begin(w http.ResponseWriter, within time.Duration) *Answer {
	a := &Answer{http.NewResponseController(w), within}
	_ = a.control.SetReadDeadline(time.Time{}) // it would now hit the wait for the reader's end
	return a
}

// Send has write send a part, and what was written before.
func (a *Answer) Send(write func() error) error {
	a.Limit()
	err := write()
	if err == nil {
		err = a.control.Flush()
	}
	_ = a.control.SetWriteDeadline(time.Time{})
	return err
}

// Limit gives what is written from now on the time of one part: what follows the last part, or an
// answer's pieces that nobody waits for.
func (a *Answer) Limit() { _ = a.control.SetWriteDeadline(time.Now().Add(a.within)) }
