package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"golang.org/x/sync/errgroup"

	"github.com/fastiov/fastiov/node-agent/failpoint"
)

// A blob is fetched in blocks, by ranges of bytes. A few are on their way at the same time, each by
// a request of its own, and what has come of the first goes on at once. A registry that knows no
// ranges is read by one request. What breaks off is asked for again from where it broke.
const (
	BlockSize    = 16 << 20
	StreamBlocks = 3 // of one blob in memory
	passSize     = 256 << 10
	maxTries     = 5 // in a row that bring nothing
	firstPause   = 100 * time.Millisecond
	longestPause = 30 * time.Second // that a registry may ask for
)

// A block is a part of a blob on its way. Whoever reads it waits for what has come.
type block struct {
	b    []byte
	mu   sync.Mutex
	come *sync.Cond
	n    int
	err  error
}

// buffers keeps the memory of whole blocks for the next blob: to be given fresh memory is work.
var buffers = sync.Pool{New: func() any { return new([BlockSize]byte) }}

// bufferOf returns memory for a block.
func bufferOf(size int) []byte {
	if size < BlockSize {
		return make([]byte, size)
	}
	return buffers.Get().(*[BlockSize]byte)[:]
}

// keep takes the memory of a blob's blocks back, when nobody uses it any more.
func keep(free <-chan []byte) {
	for range len(free) {
		if b := <-free; cap(b) == BlockSize {
			buffers.Put((*[BlockSize]byte)(b[:BlockSize]))
		}
	}
}

// fill reads a block from r, and says how it ended.
func (k *block) fill(r io.Reader) error {
	for n := 0; n < len(k.b); {
		more, err := r.Read(k.b[n:])
		n += more
		k.mu.Lock()
		k.n, k.err = n, err
		k.come.Broadcast()
		k.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// after waits for bytes behind the first n, and returns them.
func (k *block) after(n int) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.n == n && k.err == nil {
		k.come.Wait()
	}
	if k.n > n {
		return k.b[n:k.n], nil
	}
	return nil, k.err
}

// blob copies a blob to w while it is received from a host, or from those behind it. It returns an
// error unless w got the bytes that the manifest names.
func (i *Image) blob(ctx context.Context, d v1.Descriptor, w io.Writer, from *host, turn Turn) (
	err error) {
	if i.local != nil {
		return i.saved(ctx, d, w)
	}
	f := &flow{Image: i, d: d, from: from, turn: turn, sum: sha256.New(), to: w}
	for over := true; over; {
		if over, err = f.whileItsTurn(ctx); err != nil {
			return err
		}
	}
	if got := hex.EncodeToString(f.sum.Sum(nil)); got != d.Digest.Hex {
		return refuse(NotItself, "%s came as sha256:%s", d.Digest, got)
	}
	return nil
}

// A flow is a blob on its way from a host to a writer.
type flow struct {
	*Image
	d    v1.Descriptor
	from *host
	turn Turn
	at   int64 // bytes that were passed on
	sum  hash.Hash
	to   io.Writer
}

// whileItsTurn waits for the turn, and passes on what comes. It reports whether the turn was over
// before all had come.
func (f *flow) whileItsTurn(ctx context.Context) (over bool, err error) {
	turn, leave, err := f.turn.Take(ctx)
	if err != nil {
		return false, err
	}
	defer leave()
	group, ctx := errgroup.WithContext(turn)
	blocks := make(chan *block, StreamBlocks) // in order
	free := make(chan []byte, StreamBlocks)
	for range StreamBlocks {
		free <- nil
	}
	group.Go(func() error {
		defer close(blocks)
		return f.fetch(ctx, group, f.at, blocks, free)
	})
	group.Go(func() error { return f.pass(blocks, free) })
	err = group.Wait()
	keep(free)
	if err != nil && errors.Is(context.Cause(turn), ErrOver) {
		return true, nil
	}
	return false, err
}

// pass passes on blocks, and has their memory used again.
func (f *flow) pass(blocks <-chan *block, free chan<- []byte) error {
	for {
		f.turn.Waits()
		k, more := <-blocks
		if !more {
			return nil
		}
		for n := 0; n < len(k.b); {
			f.turn.Waits()
			b, err := k.after(n)
			b = b[:min(len(b), passSize)] // or the process waits while all is hashed
			f.turn.Came(len(b))
			if err != nil {
				return err
			}
			n += len(b)
			_, _ = f.sum.Write(b)
			if _, err := f.to.Write(b); err != nil {
				return err
			}
			f.at += int64(len(b))
			failpoint.Hit(failpoint.PullBlock)
		}
		free <- k.b
	}
}

// fetch has the blocks from begin on filled, each in one of the free buffers.
func (f *flow) fetch(ctx context.Context, group *errgroup.Group, begin int64,
	blocks chan<- *block, free <-chan []byte) error {
	size := f.d.Size
	if err := f.turn.Next(ctx); err != nil {
		return err
	}
	first := &part{Image: f.Image, ctx: ctx, from: f.from, d: f.d, turn: f.turn, at: begin,
		end: min(begin+BlockSize, size)}
	if err := first.open(); err != nil {
		return err
	}
	ranged := first.ranged
	if !ranged {
		first.end = size
		defer first.close()
	}
	for at := begin; at < size; at += BlockSize {
		var b []byte
		select {
		case b = <-free:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if ranged && at > begin { // else it has been asked for, and what is not read is late
			if err := f.turn.Next(ctx); err != nil {
				return err
			}
		}
		end := min(at+BlockSize, size)
		if size := int(end - at); cap(b) < size {
			b = bufferOf(size)
		} else {
			b = b[:size]
		}
		k := &block{b: b}
		k.come = sync.NewCond(&k.mu)
		blocks <- k // there are no more blocks than places
		if !ranged {
			if err := k.fill(first); err != nil {
				return err
			}
			continue
		}
		p := first
		if at > begin {
			p = &part{Image: f.Image, ctx: ctx, from: f.from, d: f.d, turn: f.turn, at: at,
				end: end}
		}
		group.Go(func() error {
			defer p.close()
			if err := k.fill(p); err != nil {
				return err
			}
			return p.over()
		})
	}
	if !ranged {
		return first.over()
	}
	return nil
}

// A part is a range of a blob, read by as many requests as it takes.
type part struct {
	*Image
	ctx     context.Context
	from    *host
	d       v1.Descriptor
	turn    Turn
	at, end int64
	body    io.ReadCloser
	ranged  bool
	failed  int // tries in a row
}

func (p *part) close() {
	if p.body != nil {
		p.body.Close()
		p.body = nil
	}
}

// open asks for what is left of the part.
func (p *part) open() error {
	for {
		err := p.ask()
		if err == nil || !p.again(err) {
			return err
		}
	}
}

func (p *part) ask() error {
	asked := ""
	if p.at > 0 || p.end < p.d.Size {
		asked = fmt.Sprintf("bytes=%d-%d", p.at, p.end-1)
	}
	resp, err := p.get(p.ctx, p.from, "blobs", p.d.Digest.String(), asked)
	if err != nil {
		return err
	}
	from, until := int64(0), p.d.Size
	if p.ranged = resp.StatusCode == http.StatusPartialContent; p.ranged {
		from, until = p.at, p.end
		want := fmt.Sprintf("bytes %d-%d/%d", from, until-1, p.d.Size)
		if got := resp.Header.Get("Content-Range"); got != want {
			resp.Body.Close()
			return refuse(NotItself, "%s: the registry sent %q for %q", p.d.Digest, got, want)
		}
	}
	if n := resp.ContentLength; n >= 0 && n != until-from {
		resp.Body.Close()
		return refuse(NotItself, "%s has %d bytes instead of %d", p.d.Digest, n, until-from)
	}
	if body, bounded := resp.Body.(*answer); bounded {
		body.lift(until - from)
	}
	p.body = resp.Body
	for from < p.at && err == nil { // the registry knows no ranges
		var n int64
		n, err = io.CopyN(io.Discard, p.body, min(p.at-from, passSize))
		p.turn.Again(int(n))
		from += n
	}
	return err
}

// again reports whether to try again after err, and waits before that. What one host does not give,
// the next may.
func (p *part) again(err error) bool {
	p.close()
	if p.ctx.Err() != nil {
		return false
	}
	var known because
	var status *transport.Error
	final := errors.As(err, &known) || errors.As(err, &status) &&
		(status.StatusCode < 500 || status.StatusCode == http.StatusServiceUnavailable) // see get
	if p.failed++; final || p.failed >= maxTries {
		next := p.after(p.ctx, p.from)
		if next != nil {
			p.from, p.failed = next, 0
			if known.Reason == NotItself {
				p.passOver(next)
			}
		}
		return next != nil
	}
	return pause(p.ctx, firstPause<<p.failed)
}

// pause waits, and reports whether it did to the end.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *part) Read(b []byte) (int, error) {
	for {
		if p.body == nil {
			if err := p.open(); err != nil {
				return 0, err
			}
		}
		n, err := p.body.Read(b[:min(int64(len(b)), p.end-p.at)])
		p.at += int64(n)
		switch {
		case n > 0:
			p.failed = 0
			return n, nil
		case err == io.EOF:
			return 0, refuse(NotItself, "%s ended after %d of %d bytes", p.d.Digest, p.at, p.d.Size)
		case err != nil && !p.again(err):
			return 0, err
		}
	}
}

// over returns an error if the answer goes on behind the part.
func (p *part) over() error {
	if p.body == nil || !p.ranged && p.end < p.d.Size { // there, the rest of the blob follows
		return nil
	}
	var one [1]byte
	if n, err := p.body.Read(one[:]); n > 0 || err != nil && errors.Is(err, errLong) {
		return refuse(NotItself, "%s has more than the %d bytes it should have", p.d.Digest,
			p.d.Size)
	}
	return nil
}

// retryAfter returns how long a registry that has too much to do wants to be left alone.
func retryAfter(resp *http.Response, tried int) time.Duration {
	wait := firstPause << tried
	told := resp.Header.Get("Retry-After")
	if seconds, err := strconv.Atoi(told); err == nil {
		wait = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(told); err == nil {
		wait = time.Until(at)
	}
	return min(max(wait, 0), longestPause)
}
