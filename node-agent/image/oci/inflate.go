package oci

import (
	"bufio"
	"bytes"
	gogzip "compress/gzip"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// An inflater reads gzip.
type inflater struct {
	name string
	open func(io.Reader) (io.Reader, error)
}

// The inflaters run inside the process that unpacks; the first is used where nothing was measured.
var inflaters = []inflater{
	{"klauspost", func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }},
	{"go", func(r io.Reader) (io.Reader, error) { return gogzip.NewReader(r) }},
}

// uncompressed reads gzip by the named inflater, zstd, or neither, according to the first bytes.
func uncompressed(sent io.Reader, name string) (io.Reader, error) {
	r := bufio.NewReaderSize(sent, 256<<10)
	magic, _ := r.Peek(4)
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		chosen := inflaters[0]
		for _, one := range inflaters {
			if one.name == name {
				chosen = one
			}
		}
		return chosen.open(r)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(64<<20))
	}
	return r, nil
}
