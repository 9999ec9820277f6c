// Package wire reads what the testbed recorded of the wire of a NIC.
package wire

import (
	"errors"
	"io"
	"iter"
	"os"

	"github.com/gopacket/gopacket/pcapgo"
)

// Frames are those of a recording, in their order. It may still be written to: half a frame at its end is none yet.
func Frames(recording string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		f, err := os.Open(recording)
		if err != nil {
			yield(nil, err)
			return
		}
		defer f.Close()
		r, err := pcapgo.NewReader(f)
		if err != nil {
			yield(nil, err)
			return
		}
		for {
			frame, _, err := r.ReadPacketData()
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return
			}
			if !yield(frame, err) || err != nil {
				return
			}
		}
	}
}
