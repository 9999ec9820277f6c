// Package wire reads the testbed's recording of a NIC's wire.
package wire

import (
	"errors"
	"io"
	"iter"
	"os"

	"github.com/gopacket/gopacket/pcapgo"
)

// Frames returns the frames of a recording in order. The recording may still grow: an incomplete
// frame at its end is left out.
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
