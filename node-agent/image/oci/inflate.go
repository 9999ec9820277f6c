package oci

import (
	"bufio"
	"bytes"
	gogzip "compress/gzip"
	"io"
	"os"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// An inflater reads gzip, of one member or several. Inflaters differ in speed alone, so a machine
// measures once which is its fastest (measure.go). An accelerator is one more of them: it has to
// pass TestInflatersAgree.
type inflater struct {
	name string
	open func(io.Reader) (io.ReadCloser, error) // an error before anything was read
}

// A worker is a reader whose work another process does, and knows how long that took.
type worker interface{ worked() time.Duration }

// The inflaters run inside the process that unpacks; the first is used where nothing was measured.
var inflaters = []inflater{
	{"klauspost", func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) }},
	{"go", func(r io.Reader) (io.ReadCloser, error) { return gogzip.NewReader(r) }},
	{igzipName, openIgzip},
}

var gzipMagic = []byte{0x1f, 0x8b}

// uncompressed reads gzip by the named inflater, zstd, or neither, according to the first bytes.
// What is sent by a pipe igzip reads itself: nobody copies it.
func uncompressed(sent *timed, name string) (io.ReadCloser, error) {
	if pipe, is := sent.Reader.(*os.File); is && name == igzipName &&
		bytes.Equal(peek(pipe, len(gzipMagic)), gzipMagic) {
		if content, err := openIgzip(pipe); err == nil {
			return content, nil
		}
	}
	r := bufio.NewReaderSize(sent, 256<<10)
	magic, _ := r.Peek(4)
	switch {
	case bytes.HasPrefix(magic, gzipMagic):
		for _, one := range inflaters {
			if one.name != name {
				continue
			}
			if content, err := one.open(r); err == nil {
				return content, nil
			}
		}
		return inflaters[0].open(r)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		// two: blocks are read while those before are decoded
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(2), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(64<<20))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(r), nil
}

// peek waits for the first bytes of a pipe, and leaves them there. It returns fewer than n where
// fewer came at once.
func peek(pipe *os.File, n int) []byte {
	r, w, err := os.Pipe()
	if err != nil {
		return nil
	}
	defer r.Close()
	defer w.Close()
	come, err := unix.Tee(int(pipe.Fd()), int(w.Fd()), n, 0)
	if err != nil {
		return nil
	}
	b := make([]byte, come)
	_, _ = io.ReadFull(r, b)
	return b
}
