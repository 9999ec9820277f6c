package oci

import (
	"bufio"
	"bytes"
	gogzip "compress/gzip"
	"io"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
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

// uncompressed reads gzip by the named inflater, zstd, or neither, according to the first bytes.
func uncompressed(sent io.Reader, name string) (io.ReadCloser, error) {
	r := bufio.NewReaderSize(sent, 256<<10)
	magic, _ := r.Peek(4)
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
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
