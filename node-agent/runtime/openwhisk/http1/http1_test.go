package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

func message(text string) (h Head, body []byte, rest string, err error) {
	in := bufio.NewReader(strings.NewReader(text))
	if err = h.Read(in); err == nil {
		body, err = h.Body(in, 100)
	}
	left, _ := io.ReadAll(in)
	return h, body, string(left), err
}

func TestMessages(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for _, c := range []struct {
		text, body, rest string
		close            bool
	}{
		{ok + "Content-Length: 2\r\n\r\n{}next", "{}", "next", false},
		{ok + "content-length:2\n\n{}", "{}", "", false},
		{ok + "Content-Length: 2\r\nConnection: Close\r\n\r\n{}", "{}", "", true},
		{ok + "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;x=y\r\n}\r\n0\r\nX: y\r\n\r\nnext", "{}", "next", false},
		{ok + "\r\nuntil the end", "until the end", "", false},
		{"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", "", "", true},
		{"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", "", "", false},
		{ok + "X: " + strings.Repeat("y", 8<<10) + "\r\nContent-Length: 1\r\n\r\n1", "1", "", false},
	} {
		h, body, rest, err := message(c.text)
		if err != nil || string(body) != c.body || rest != c.rest || h.Close != c.close {
			t.Errorf("%.80q: %+v %q and then %q, %v", c.text, h, body, rest, err)
		}
	}
}

func TestMessagesThatAreRefused(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for text, want := range map[string]string{
		"":                                "EOF",
		"HTTP/1.1":                        "unexpected EOF",
		ok:                                "unexpected EOF",
		ok + "X\r\n\r\n":                  "without a colon",
		ok + "Content-Length: -1\r\n\r\n": "Content-Length",
		ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n":     "Content-Length",
		ok + "Content-Length: 101\r\n\r\n":                        "too long",
		ok + "\r\n" + strings.Repeat("x", 101):                    "too long",
		ok + "Content-Length: 3\r\n\r\n{}":                        "unexpected EOF",
		ok + "Transfer-Encoding: gzip, chunked\r\n\r\n":           "Transfer-Encoding",
		ok + "Transfer-Encoding: chunked\r\n\r\n7f\r\n":           "EOF",
		ok + strings.Repeat("X: y\r\n", mostHead/6) + "\r\n":      "longer than",
		ok + "X: " + strings.Repeat("y", 2*mostHead) + "\r\n\r\n": "longer than",
	} {
		if _, _, _, err := message(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %s", text, err, want)
		}
	}
}

// FuzzMessage: whatever a stranger writes, its message is refused or has a body within the bound,
// and is understood as net/http understands it.
func FuzzMessage(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"))
	f.Add([]byte("HTTP/1.0 502 X\r\nConnection: keep-alive\r\n\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		const most = 100
		var h Head
		in := bufio.NewReader(bytes.NewReader(said))
		if h.Read(in) != nil {
			return
		}
		body, err := h.Body(in, most)
		if len(body) > most || err == nil && h.Length > 0 && !h.Chunked && len(body) != h.Length {
			t.Fatalf("a body of %d bytes, announced as %d", len(body), h.Length)
		}
		theirs, failed := http.ReadResponse(bufio.NewReader(bytes.NewReader(said)), nil)
		if err != nil || failed != nil || !theirs.ProtoAtLeast(1, 1) ||
			theirs.StatusCode/100 != 2 || theirs.StatusCode == 204 {
			return // the caller, who reads the first line, decides whether those have a body
		}
		same, failed := io.ReadAll(io.LimitReader(theirs.Body, most+1))
		if failed == nil && !bytes.Equal(same, body) && !errors.Is(err, ErrLong) {
			t.Fatalf("a body %q, and net/http reads %q", body, same)
		}
	})
}
