// Package lines splits what a program writes into lines, as the guest's process 1 and the agent do.
package lines

import (
	"bytes"
	"io"
	"unicode/utf8"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// Split emits the text of r line by line, without newlines. It emits a line longer than
// wire.MaxText in pieces, and one that ends in the mark at once, since its writer may write no
// newline. In neither way is a mark torn.
func Split(r io.Reader, mark string, emit func(string)) {
	var line []byte
	ended := false // the line was emitted at its mark: a newline that follows belongs to it
	chunk := make([]byte, 8<<10)
	for {
		n, err := r.Read(chunk)
		for rest := chunk[:n]; len(rest) > 0; {
			text, after, whole := bytes.Cut(rest, []byte{'\n'})
			rest = after
			if len(text) > 0 {
				ended = false
			}
			line = append(line, text...)
			line = emitPieces(line, mark, emit)
			switch {
			case whole && !ended, mark != "" && bytes.HasSuffix(line, []byte(mark)):
				emit(string(line))
				line, ended = line[:0], !whole
			case whole:
				ended = false
			}
		}
		if err != nil {
			if len(line) > 0 {
				emit(string(line))
			}
			return
		}
	}
}

// emitPieces emits the front of a line that is too long and returns the rest. It cuts only where it
// can see that no mark is torn.
func emitPieces(line []byte, mark string, emit func(string)) []byte {
	for len(line) > wire.MaxText {
		cut := wire.MaxText - len(mark)
		near := cut - max(len(mark)-1, 0)
		if i := bytes.Index(line[near:cut+max(len(mark)-1, 0)], []byte(mark)); i >= 0 {
			cut = near + i
		}
		for range utf8.UTFMax - 1 {
			if utf8.RuneStart(line[cut]) {
				break
			}
			cut--
		}
		emit(string(line[:cut]))
		line = append(line[:0], line[cut:]...)
	}
	return line
}
