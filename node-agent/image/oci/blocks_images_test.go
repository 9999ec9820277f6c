//go:build images

package oci

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// A mean registry does one thing wrong, in one block of a blob, once or each time.
type mean struct {
	blob   []byte
	block  int
	what   string
	always bool

	mu    sync.Mutex
	done  bool
	asked int
}

func (m *mean) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.Contains(r.URL.Path, "/blobs/") {
		emptyManifest(w, r)
		return
	}
	from, until := 0, len(m.blob)
	if said := r.Header.Get("Range"); said != "" {
		if _, err := fmt.Sscanf(said, "bytes=%d-%d", &from, &until); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		until++
	}
	begin := m.block * BlockSize
	end := min(begin+BlockSize, len(m.blob))
	m.mu.Lock()
	wrong := from < end && until > begin && (m.always || !m.done)
	if wrong {
		m.done = true
	}
	m.asked++
	m.mu.Unlock()
	b := m.blob[from:until]
	where := max((begin+end)/2-from, 0) // in the answer
	send := len(b)
	if wrong {
		switch m.what {
		case "no ranges":
			b, from, until = m.blob, 0, len(m.blob)
			send = len(b)
		case "another range":
			from++
		case "too short":
			b = b[:len(b)-1]
			send = len(b)
		case "a flipped bit":
			b = bytes.Clone(b)
			b[where] ^= 1
		case "429":
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		case "503":
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		case "resets at once":
			panic(http.ErrAbortHandler)
		default: // resets, stalls
			send = where
		}
	}
	status := http.StatusOK
	if r.Header.Get("Range") != "" && !(wrong && m.what == "no ranges") {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, until-1, len(m.blob)))
		status = http.StatusPartialContent
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b[:send])
	if send < len(b) && m.what == "stalls" {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	if send < len(b) {
		panic(http.ErrAbortHandler)
	}
}

// TestEachBlockGoesWrong does each thing wrong in each of four blocks, once and always: the blob
// comes right, or an error with its reason.
func TestEachBlockGoesWrong(t *testing.T) {
	blob := randomBlob(3*BlockSize + 12345)
	for what, reasons := range map[string][2]Reason{ // once, always; empty: the blob is right
		"resets": {"", Unreachable}, "resets at once": {"", Unreachable}, "429": {"", Unreachable},
		"503": {"", Unreachable}, "no ranges": {},
		"stalls":        {Late, Late},
		"a flipped bit": {NotItself, NotItself}, "another range": {NotItself, NotItself},
		"too short": {NotItself, NotItself},
	} {
		for block := range 4 {
			for n, always := range []bool{false, true} {
				m := &mean{blob: blob, block: block, what: what, always: always}
				got, err := meanly(t, m)
				var why *Refusal
				switch {
				case reasons[n] == "" && (err != nil || !bytes.Equal(got, blob)):
					t.Errorf("%s in block %d, always %v: %d bytes, %v", what, block, always,
						len(got), err)
				case reasons[n] != "" && (!errors.As(err, &why) || why.Reason != reasons[n] ||
					strings.Contains(err.Error(), "\n")):
					t.Errorf("%s in block %d, always %v: %v; want %s", what, block, always, err,
						reasons[n])
				}
				if m.asked > 4*maxTries {
					t.Errorf("%s in block %d, always %v: asked %d times", what, block, always,
						m.asked)
				}
			}
		}
	}
}

func meanly(t *testing.T, m *mean) ([]byte, error) {
	t.Helper()
	server := httptest.NewServer(m)
	defer server.Close()
	i, err := source(t, server.URL).Find(t.Context(), strings.TrimPrefix(server.URL, "http://")+
		"/a:1", "")
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	if m.what == "stalls" {
		i.hosts[0].way.window = 300 * time.Millisecond
	}
	sum := sha256.Sum256(m.blob)
	var got bytes.Buffer
	err = i.blob(t.Context(), v1.Descriptor{Size: int64(len(m.blob)),
		Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}, &got,
		i.hosts[0], atOnce{})
	return got.Bytes(), refusal("a:1", err)
}
