package oci

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// One registry sends one byte after the other, and one sends enough.
func TestARegistryThatDripsIsLate(t *testing.T) {
	gone := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		for r.Context().Err() == nil {
			_, _ = w.Write([]byte(" "))
			w.(http.Flusher).Flush()
			time.Sleep(time.Millisecond)
		}
	}))
	defer server.Close()
	registries, err := ParseRegistries([]string{server.URL})
	if err != nil {
		t.Fatal(err)
	}
	w := newRoad(registries, strings.TrimPrefix(server.URL, "http://"), false, func(int64) {})
	w.window = 50 * time.Millisecond
	defer w.http.CloseIdleConnections()
	resp, err := (&http.Client{Transport: w}).Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, err = io.ReadAll(io.LimitReader(resp.Body, 5000)) // at most 5 s of the body
	var why because
	if !errors.As(err, &why) || why.Reason != Late {
		t.Errorf("got %v, want that it took too long", err)
	}
	resp.Body.Close()
	<-gone
}

func TestAnAnswerOfSomeSpeedMayLast(t *testing.T) {
	quick := io.NopCloser(bytes.NewReader(make([]byte, 2*slowest)))
	ended := make(chan struct{}, 1)
	a := newAnswer(quick, func(int64) {}, time.Hour, func() { ended <- struct{}{} })
	if n, err := io.Copy(io.Discard, a); n != 2*slowest || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	a.timer.Reset(0) // a window that brought enough ends
	for a.recent.Load() != 0 {
		time.Sleep(time.Millisecond)
	}
	if a.slow.Load() {
		t.Error("it is called slow")
	}
	a.Close()
	<-ended
}
