package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// A layer is worked on in pieces, each of which goes to three goroutines at the same time: one
// hashes it, one writes it to the blob, one reads it as an archive and writes the index.
const (
	pieceSize  = 1 << 20
	pieces     = 6
	pageSize   = 4096
	maxPadding = 1 << 20 // zeros behind an archive
)

// Stages says how long the steps of a layer took, each for itself: they overlap. The names are
// those of the Poby paper, with the digests beside them; what it calls transmission, from the NIC
// to the host, is the writing of blobs here.
type Stages struct {
	Download, Decompress, Digest, Transmit, Unpack time.Duration
}

// Add adds the times of another layer.
func (s *Stages) Add(more Stages) {
	s.Download += more.Download
	s.Decompress += more.Decompress
	s.Digest += more.Digest
	s.Transmit += more.Transmit
	s.Unpack += more.Unpack
}

// Layer holds what is known of an unpacked layer.
type Layer struct {
	DiffID string // digest of its archive
	Size   int64  // of the archive
	Bytes  int64  // of the blob: the archive, zeros, and contents of sparse files
	Sparse int64  // of these contents
	Names  int
	Index  string // digest of the index
	Stages Stages
}

// layer unpacks a layer from in.
func layer(in io.Reader, inflater string, most rootfs.Limits, room *Room, blob, index *os.File) (
	Layer, error) {
	s := &stream{blob: blob, room: room, free: make(chan []byte, pieces)}
	for range pieces {
		s.free <- nil
	}
	group, ctx := errgroup.WithContext(context.Background())
	s.ctx = ctx
	for n := range s.to {
		s.to[n] = make(chan *piece, pieces)
	}
	var l Layer
	h, sum := sha256.New(), sha256.New()
	group.Go(func() error { return s.read(in, inflater, &l.Stages) })
	group.Go(func() error {
		return s.each(s.to[0], &l.Stages.Digest, func(p *piece) error {
			_, err := h.Write(p.b)
			return err
		})
	})
	group.Go(func() error {
		return s.each(s.to[1], &l.Stages.Transmit, func(p *piece) error {
			_, err := blob.WriteAt(p.b, p.at)
			return err
		})
	})
	group.Go(func() (err error) {
		a := &archive{stream: s, from: s.to[2], spillAt: roundUp(most.Bytes)}
		begin := time.Now()
		l.Names, err = rootfs.Scan(a, most, io.MultiWriter(index, sum))
		if err == nil {
			_, err = io.Copy(&padding{}, a)
		}
		l.Stages.Unpack = time.Since(begin) - a.waited
		l.Bytes, l.Sparse = a.spillEnd, a.spilled
		return err
	})
	if err := group.Wait(); err != nil {
		return l, err
	}
	l.Size = s.size
	l.Bytes = max(l.Bytes, roundUp(l.Size))
	l.DiffID = "sha256:" + hex.EncodeToString(h.Sum(nil))
	l.Index = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	return l, blob.Truncate(l.Bytes)
}

func roundUp(n int64) int64 { return (n + pageSize - 1) / pageSize * pageSize }

// A piece is a part of an archive, which returns to the stream when its last user lets it go.
type piece struct {
	b     []byte
	at    int64
	users atomic.Int32
}

type stream struct {
	ctx  context.Context
	blob *os.File
	room *Room
	size int64
	free chan []byte
	to   [3]chan *piece
}

func (s *stream) done(p *piece) {
	if p.users.Add(-1) == 0 {
		s.free <- p.b[:pieceSize]
	}
}

// read decompresses, and hands out the pieces.
func (s *stream) read(in io.Reader, inflater string, stages *Stages) error {
	defer func() {
		for _, to := range s.to {
			close(to)
		}
	}()
	sent := &timed{Reader: in}
	begin := time.Now()
	var waited time.Duration
	content, err := uncompressed(sent, inflater)
	if err != nil {
		return err
	}
	defer func() {
		_ = content.Close()
		stages.Decompress = time.Since(begin) - waited - sent.waited
		if other, is := content.(worker); is {
			stages.Decompress = other.worked()
		}
	}()
	for {
		var b []byte
		start := time.Now()
		select {
		case b = <-s.free:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
		waited += time.Since(start)
		if b == nil {
			b = make([]byte, pieceSize)
		}
		n, err := fill(content, b)
		if n == 0 {
			s.free <- b
		} else {
			p := &piece{b: b[:n], at: s.size}
			p.users.Store(int32(len(s.to)))
			s.size += int64(n)
			if err := s.room.Take(int64(n)); err != nil {
				return err
			}
			for _, to := range s.to {
				to <- p // there are no more pieces than places
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// fill reads until b is full, or an error, which io.ReadFull would hide.
func fill(r io.Reader, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var more int
		more, err = r.Read(b[n:])
		n += more
	}
	return n, err
}

// each calls f with every piece, and adds up how long that takes.
func (s *stream) each(from <-chan *piece, took *time.Duration, f func(*piece) error) error {
	for p := range from {
		begin := time.Now()
		err := f(p)
		*took += time.Since(begin)
		s.done(p)
		if err != nil {
			return err
		}
	}
	return nil
}

// Content returns what the layer took of its image's room.
func (l Layer) Content() int64 { return l.Size + l.Sparse }
