package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A log that breaks off, as where an agent is killed, goes on where it was, until its pod is gone;
// one that cannot be read at all is an error.
func TestALogGoesOn(t *testing.T) {
	var pod corev1.Pod
	pod.Name, pod.Status.Phase = "hello-1", corev1.PodRunning
	first := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	asked, crashed, down := 0, false, false
	var watched atomic.Int32
	mux := http.NewServeMux()
	ctx, stop := context.WithCancel(t.Context())
	mux.HandleFunc("GET /pods", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			if watched.Add(1) == 1 { // another invoker is about to go on
				http.Error(w, "", http.StatusBadGateway)
				return
			}
			if version := r.URL.Query().Get("resourceVersion"); version != "" {
				t.Errorf("of another invoker it watches from %s on", version)
			}
			<-ctx.Done()
			return
		}
		_ = json.NewEncoder(w).Encode(corev1.PodList{Items: []corev1.Pod{pod},
			ListMeta: metav1.ListMeta{ResourceVersion: "7"}})
	})
	mux.HandleFunc("GET /pods/hello-1", func(w http.ResponseWriter, r *http.Request) {
		if asked > 1 {
			stop()
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(pod)
	})
	mux.HandleFunc("GET /pods/hello-1/log", func(w http.ResponseWriter, r *http.Request) {
		if down {
			http.Error(w, `{"message":"the node is away"}`, http.StatusServiceUnavailable)
			return
		}
		if asked == 1 && !crashed { // until it runs again
			crashed = true
			http.NotFound(w, r)
			return
		}
		since, _ := time.Parse(time.RFC3339Nano, r.URL.Query().Get("sinceTime"))
		for n := range asked + 1 {
			if at := first.Add(time.Duration(n)); !at.Before(since) {
				fmt.Fprintf(w, "%s line %d\n", at.Format(time.RFC3339Nano), n)
			}
		}
		if asked++; asked == 1 {
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	var out strings.Builder
	open := func() *loggedService {
		return &loggedService{name: "hello", pods: server.URL + "/pods", out: &out,
			errs: io.Discard, known: map[string]bool{}}
	}
	if err := open().logs(ctx, true); err != nil && ctx.Err() == nil {
		t.Error(err)
	}
	if n := watched.Load(); n != 2 {
		t.Errorf("it watches %d times", n)
	}
	if said := out.String(); strings.Count(said, "line 0") != 1 ||
		strings.Count(said, "line 1") != 1 || asked != 2 || !crashed {
		t.Errorf("asked %d times, it is %q", asked, said)
	}
	mux.HandleFunc("GET /refused", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			http.Error(w, `{"message":"the key was taken back"}`, http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(corev1.PodList{Items: []corev1.Pod{pod}})
	})
	mux.HandleFunc("GET /refused/hello-1/log", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "{}", http.StatusUnauthorized)
	})
	refused := open()
	refused.pods = server.URL + "/refused"
	if err := refused.logs(t.Context(), true); err == nil ||
		!strings.Contains(err.Error(), "taken back") {
		t.Errorf("with a key that was taken back: %v", err)
	}
	down = true
	if err := open().logs(t.Context(), false); err == nil ||
		!strings.Contains(err.Error(), "the node is away") {
		t.Errorf("without a node: %v", err)
	}
}
