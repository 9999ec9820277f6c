package openwhisk

import (
	"errors"
	"net/http"

	"github.com/fastiov/fastiov/invoker/access"
)

// maxList bounds an answer that is a list. Beyond it there are fewer rows than were asked for,
// which clients must expect anyhow; the last one is whole.
const maxList = 16 << 20

// flushAt is the size at which what was made of a list is sent.
const flushAt = 64 << 10

// A list is an answer that is sent as it is made: only one row, and some small ones, are in memory
// at once.
type list struct {
	w     http.ResponseWriter
	bytes *holding
	rows  int
	sent  int
	part  []byte
}

// errEnough ends a list that has become too long.
var errEnough = errors.New("the list is long enough")

// row appends a row.
func (l *list) row(appended func([]byte) []byte) error {
	if l.sent+len(l.part) >= maxList {
		return errEnough
	}
	between := byte(',')
	if l.rows == 0 {
		between = '['
	}
	l.rows++
	before := len(l.part)
	l.part = appended(append(l.part, between))
	size := int64(len(l.part))
	if len(l.part)-before < flushAt {
		l.bytes.force(max(l.bytes.n, size)) // small rows are answered whatever else runs
	} else if err := l.bytes.upTo(size); err != nil {
		return err
	}
	if len(l.part) < flushAt {
		return nil
	}
	return l.send()
}

func (l *list) send() error {
	if l.sent == 0 {
		h := l.w.Header()
		h["Content-Type"], h["X-Content-Type-Options"] = jsonType, noSniff
	}
	n, err := l.w.Write(l.part)
	l.sent += n
	if l.part = l.part[:0]; cap(l.part) > 1<<20 {
		l.part = nil // a large row is not kept for small ones
	}
	return err
}

// end ends the answer. After an error in the middle it ends the connection, so that half a list
// does not look whole.
func (l *list) end(err error) error {
	switch {
	case err == nil || errors.Is(err, errEnough):
	case l.sent > 0 && errors.As(err, new(*access.TooMany)): // its last row is whole, too
	case l.sent > 0:
		panic(http.ErrAbortHandler)
	default:
		return err
	}
	if l.rows == 0 {
		l.part = append(l.part, '[')
	}
	l.part = append(l.part, ']')
	_ = l.send() // the caller has gone: nobody is left to tell
	return nil
}
