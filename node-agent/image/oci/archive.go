package oci

import (
	"bytes"
	"errors"
	"io"
	"time"
)

// An archive is the stream of pieces as rootfs.Scan reads it.
type archive struct {
	*stream
	from     <-chan *piece
	at       *piece
	rest     []byte
	read     int64
	spillAt  int64 // behind the longest archive
	spillEnd int64 // 0: nothing was spilled
	spilled  int64 // bytes of contents
	waited   time.Duration
}

// next makes sure that there is something to read.
func (a *archive) next() error {
	for len(a.rest) == 0 {
		if a.at != nil {
			a.done(a.at)
		}
		begin := time.Now()
		p, more := <-a.from
		a.waited += time.Since(begin)
		if a.at = p; !more {
			return io.EOF
		}
		a.rest = p.b
	}
	return nil
}

func (a *archive) Read(b []byte) (int, error) {
	if err := a.next(); err != nil {
		return 0, err
	}
	n := copy(b, a.rest)
	a.skip(n)
	return n, nil
}

func (a *archive) skip(n int) {
	a.rest = a.rest[n:]
	a.read += int64(n)
}

var errSeek = errors.New("an archive is only read forwards")

// Seek skips content. Behind the end there is nothing, so that an archive that was cut short is
// found to be.
func (a *archive) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekCurrent || offset < 0 {
		return 0, errSeek
	}
	for offset > 0 {
		if err := a.next(); err == io.EOF {
			return 0, io.ErrUnexpectedEOF
		}
		n := int(min(offset, int64(len(a.rest))))
		a.skip(n)
		offset -= int64(n)
	}
	return a.read, nil
}

// Spill adds a sparse file's content to the blob, behind all that an archive may have.
func (a *archive) Spill(fill func(io.Writer) error) (at int64, err error) {
	at = max(a.spillAt, a.spillEnd)
	w := io.NewOffsetWriter(a.blob, at)
	if err := fill(taker{w, a.room}); err != nil {
		return 0, err
	}
	n, err := w.Seek(0, io.SeekCurrent)
	a.spillEnd = roundUp(at + n)
	a.spilled += n
	return at, err
}

// padding accepts the zeros that may follow an archive.
type padding struct{ n int }

func (p *padding) Write(b []byte) (int, error) {
	if p.n += len(b); p.n > maxPadding || len(bytes.Trim(b, "\x00")) > 0 {
		return 0, errors.New("there is more behind the end of its archive than zeros to fill it up")
	}
	return len(b), nil
}

// timed adds up how long a reader was waited for.
type timed struct {
	io.Reader
	waited time.Duration
}

func (t *timed) Read(b []byte) (int, error) {
	begin := time.Now()
	n, err := t.Reader.Read(b)
	t.waited += time.Since(begin)
	return n, err
}
