// Package http1 reads messages of HTTP/1.1 and allocates nothing but their bodies. A stranger wrote
// them: the package bounds their heads, and its caller bounds their bodies.
package http1

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http/httputil"
	"slices"
	"strconv"
)

const mostHead = 16 << 10 // bytes

var errLongHead = fmt.Errorf("the head of a message is longer than %d bytes", mostHead)

// ErrLong says that a body is longer than its reader takes.
var ErrLong = errors.New("too long")

// A Head holds what stands before a body. It can be used again for the next message.
type Head struct {
	First   []byte // its first line, without the end of the line
	Length  int    // of the body; -1: it ends with the connection
	Chunked bool   // the body tells its length as it comes
	Close   bool   // the connection ends after this message
}

// Read reads a head. The error is io.EOF only where the connection ended before its first byte.
func (h *Head) Read(in *bufio.Reader) error {
	*h = Head{First: h.First[:0], Length: -1}
	left := mostHead
	line, err := readLine(in, &left)
	if err != nil {
		return err
	}
	h.First = append(h.First, line...)
	h.Close = bytes.Contains(line, []byte("HTTP/1.0"))
	for {
		line, err := readLine(in, &left)
		switch {
		case err != nil:
			return torn(err)
		case len(line) == 0:
			return nil
		}
		if err := h.field(line); err != nil {
			return err
		}
	}
}

// field takes in a header.
func (h *Head) field(line []byte) error {
	name, value, found := bytes.Cut(line, []byte{':'})
	if !found {
		return fmt.Errorf("a header without a colon: %.40q", line)
	}
	value = bytes.TrimSpace(value)
	switch {
	case is(name, "Content-Length"):
		n, err := strconv.ParseUint(string(value), 10, 31)
		if err != nil || h.Length >= 0 && h.Length != int(n) {
			return fmt.Errorf("a Content-Length of %.40q", value)
		}
		h.Length = int(n)
	case is(name, "Transfer-Encoding"):
		if h.Chunked = is(value, "chunked"); !h.Chunked {
			return fmt.Errorf("a Transfer-Encoding of %.40q", value)
		}
	case is(name, "Connection"):
		h.Close = is(value, "close") || h.Close && !is(value, "keep-alive")
	}
	return nil
}

func is(text []byte, want string) bool {
	return len(text) == len(want) && bytes.EqualFold(text, []byte(want))
}

// Body reads the body of the message, and no byte more. Its buffer grows by what comes, not by what
// was announced. With an error comes what was read.
func (h *Head) Body(in *bufio.Reader, most int) ([]byte, error) {
	switch {
	case h.Chunked:
		return h.chunks(in, most)
	case h.Length > most:
		return nil, ErrLong
	case h.Length < 0:
		return atMost(in, most)
	}
	body := make([]byte, 0, min(h.Length, 64<<10))
	for len(body) < h.Length {
		if len(body) == cap(body) {
			body = slices.Grow(body, 1)
		}
		n, err := in.Read(body[len(body):min(cap(body), h.Length)])
		body = body[:len(body)+n]
		if err != nil && len(body) < h.Length {
			return body, torn(err)
		}
	}
	return body, nil
}

func (h *Head) chunks(in *bufio.Reader, most int) ([]byte, error) {
	body, err := atMost(httputil.NewChunkedReader(in), most)
	if err != nil {
		return body, err
	}
	for left := mostHead; ; { // what follows the last chunk
		line, err := readLine(in, &left)
		if err != nil {
			return body, torn(err)
		}
		if len(line) == 0 {
			return body, nil
		}
	}
}

func atMost(r io.Reader, most int) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
	if len(body) > most {
		return nil, ErrLong
	}
	return body, err
}

// readLine reads a line, which stays as it is until the next read. For one that is longer than the
// buffer it returns a header without a name: nobody here looks at such a header.
func readLine(in *bufio.Reader, left *int) ([]byte, error) {
	for long := false; ; long = true {
		line, err := in.ReadSlice('\n')
		if *left -= len(line); *left < 0 {
			return nil, errLongHead
		}
		switch {
		case err == nil && long:
			return []byte{':'}, nil
		case err == nil:
			return bytes.TrimRight(line, "\r\n"), nil
		case errors.Is(err, io.EOF) && *left < mostHead:
			return nil, io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// torn is the error of a connection that ended within a message.
func torn(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
