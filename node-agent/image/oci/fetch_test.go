package oci

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// A moody registry has one blob, and does what next says with each request for it.
type moody struct {
	blob   []byte
	mu     sync.Mutex
	asked  []string // ranges
	refuse bool     // ranges
	next   func(n int, w http.ResponseWriter) (send int, done bool)
}

func (m *moody) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.Contains(r.URL.Path, "/blobs/") {
		emptyManifest(w, r)
		return
	}
	m.mu.Lock()
	m.asked = append(m.asked, r.Header.Get("Range"))
	n := len(m.asked)
	m.mu.Unlock()
	send := len(m.blob)
	if m.next != nil {
		var done bool
		if send, done = m.next(n, w); done {
			return
		}
	}
	b, status := m.blob, http.StatusOK
	var from, to int
	if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); err == nil &&
		!m.refuse {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(b)))
		b, status = b[from:to+1], http.StatusPartialContent
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b[:min(send, len(b))])
	if send < len(b) {
		panic(http.ErrAbortHandler)
	}
}

func emptyManifest(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.URL.Path, "/manifests/") {
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		fmt.Fprint(w, `{"schemaVersion":2,"mediaType":`+
			`"application/vnd.oci.image.manifest.v1+json","config":{"digest":"sha256:`+
			strings.Repeat("0", 64)+`","size":1},"layers":[]}`)
	}
}

// fetchFrom fetches the registry's blob.
func fetchFrom(t *testing.T, m *moody) ([]byte, error) {
	t.Helper()
	return fetchInTurn(t, m, atOnce{})
}

func fetchInTurn(t *testing.T, m *moody, turn Turn) ([]byte, error) {
	t.Helper()
	server := httptest.NewServer(m)
	defer server.Close()
	s := source(t, server.URL)
	i, err := s.Find(t.Context(), strings.TrimPrefix(server.URL, "http://")+"/a:1", "")
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	sum := sha256.Sum256(m.blob)
	var got bytes.Buffer
	err = i.blob(t.Context(), v1.Descriptor{Size: int64(len(m.blob)),
		Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}, &got,
		i.hosts[0], turn)
	return got.Bytes(), err
}

func randomBlob(size int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

func TestABlobComesInRanges(t *testing.T) {
	m := &moody{blob: randomBlob(2*BlockSize + 100)}
	got, err := fetchFrom(t, m)
	if err != nil || !bytes.Equal(got, m.blob) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if len(m.asked) != 3 {
		t.Errorf("asked %q", m.asked)
	}
}

// noting notes how many blocks had been asked for whenever it was to wait for the next.
type noting struct {
	atOnce
	*moody
	had []int
}

func (n *noting) Next(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.had = append(n.had, len(n.asked))
	return nil
}

// TestWhoStandsAsideHasAskedForNothing: an answer that nobody reads is late.
func TestWhoStandsAsideHasAskedForNothing(t *testing.T) {
	for _, refuse := range []bool{false, true} {
		turn := &noting{moody: &moody{blob: randomBlob(2*BlockSize + 100), refuse: refuse}}
		if _, err := fetchInTurn(t, turn.moody, turn); err != nil {
			t.Fatal(err)
		}
		waits := 3 // once for each block
		if refuse {
			waits = 1 // there is but one answer
		}
		if len(turn.had) != waits || turn.had[0] != 0 {
			t.Errorf("without ranges: %t: it waited after %v requests", refuse, turn.had)
		}
	}
}

func TestAMoodyRegistryIsAskedAgain(t *testing.T) {
	for name, next := range map[string]func(int, http.ResponseWriter) (int, bool){
		"resets in the first block": func(n int, _ http.ResponseWriter) (int, bool) {
			if n == 1 {
				return 1 << 20, false
			}
			return 1 << 30, false
		},
		"resets each answer once": func(n int, _ http.ResponseWriter) (int, bool) {
			if n%2 == 1 {
				return 3 << 20, false
			}
			return 1 << 30, false
		},
		"sends little at a time": func(n int, _ http.ResponseWriter) (int, bool) {
			return 5 << 20, false
		},
		"is busy": func(n int, w http.ResponseWriter) (int, bool) {
			if n%2 == 1 {
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(http.StatusTooManyRequests)
				return 0, true
			}
			return 1 << 30, false
		},
		"fails": func(n int, w http.ResponseWriter) (int, bool) {
			if n < 3 {
				w.WriteHeader(http.StatusBadGateway)
				return 0, true
			}
			return 1 << 30, false
		},
	} {
		for _, refuse := range []bool{false, true} {
			m := &moody{blob: randomBlob(BlockSize + 1<<20), next: next, refuse: refuse}
			if refuse && name == "sends little at a time" {
				continue // never comes to an end: the beginning is sent again and again
			}
			got, err := fetchFrom(t, m)
			if err != nil || !bytes.Equal(got, m.blob) {
				t.Errorf("%s, ranges refused %v: %d bytes, %v", name, refuse, len(got), err)
			}
		}
	}
}

func TestARegistryThatStaysBadIsGivenUp(t *testing.T) {
	for name, next := range map[string]func(int, http.ResponseWriter) (int, bool){
		"resets": func(int, http.ResponseWriter) (int, bool) { return 0, false },
		"busy": func(_ int, w http.ResponseWriter) (int, bool) {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
			return 0, true
		},
		"absent": func(_ int, w http.ResponseWriter) (int, bool) {
			w.WriteHeader(http.StatusNotFound)
			return 0, true
		},
	} {
		m := &moody{blob: randomBlob(1 << 20), next: next}
		if _, err := fetchFrom(t, m); err == nil {
			t.Errorf("%s: no error", name)
		}
		if most := 2 * maxTries; len(m.asked) > most || name == "absent" && len(m.asked) != 1 {
			t.Errorf("%s: asked %d times", name, len(m.asked))
		}
	}
}

func TestALyingRegistryIsNotAskedAgain(t *testing.T) {
	m := &moody{blob: randomBlob(2 << 20)}
	m.next = func(_ int, w http.ResponseWriter) (int, bool) {
		b := bytes.Clone(m.blob)
		b[len(b)-1] ^= 1
		_, _ = w.Write(b)
		return 0, true
	}
	_, err := fetchFrom(t, m)
	var why because
	if !errors.As(err, &why) || why.Reason != NotItself || len(m.asked) != 1 {
		t.Errorf("%v after %d requests", err, len(m.asked))
	}
}

func TestRetryAfter(t *testing.T) {
	for told, want := range map[string]time.Duration{
		"": firstPause, "2": 2 * time.Second, "3600": longestPause, "-1": 0,
		"Mon, 02 Jan 2006 15:04:05 GMT": 0, "soon": firstPause,
	} {
		resp := &http.Response{Header: http.Header{"Retry-After": {told}}}
		if got := retryAfter(resp, 0); got != want {
			t.Errorf("%q: %v, want %v", told, got, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if pause(ctx, time.Hour) {
		t.Error("a pause outlived its pull")
	}
}
