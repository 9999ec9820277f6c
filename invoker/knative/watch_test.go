package knative

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/access"
)

// Whoever watches from a revision is told each later change once, in order, however late it reads;
// and what ceases to be chosen is gone for it.
func TestAWatchReplays(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	h.ready("hello", "True")
	h.until("it is at rest", func() bool {
		was := h.must("GET", objects+"services/hello", "")
		time.Sleep(100 * time.Millisecond)
		return h.must("GET", objects+"services/hello", "") == was
	})
	h.must("PATCH", objects+"services/hello", `{"metadata":{"labels":{"a":"1"}}}`)
	h.must("PATCH", objects+"services/hello", `{"metadata":{"labels":{"a":"2"}}}`)
	_, said := h.ask("GET", objects+"services?watch=true&labelSelector=a%3D1&resourceVersion="+
		fmt.Sprint(h.api.world.floor)+"&timeoutSeconds=3", "", "")
	var got []string
	last := ""
	for line := range strings.Lines(said) {
		var e struct {
			Type   string
			Object struct {
				Metadata struct{ ResourceVersion string }
			}
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if v := e.Object.Metadata.ResourceVersion; len(v) < len(last) || v <= last {
			t.Errorf("%s comes after %s", v, last)
		} else {
			last = v
		}
		got = append(got, e.Type)
	}
	if fmt.Sprint(got) != "[ADDED DELETED]" {
		t.Errorf("the watch is told %s", got)
	}
	code, said := h.ask("GET", objects+"services?watch=true&sendInitialEvents=true&"+
		"resourceVersionMatch=NotOlderThan&timeoutSeconds=3", "", "")
	if code != 200 || !strings.Contains(said, "k8s.io/initial-events-end") {
		t.Errorf("a list by watch is answered %d %s", code, said)
	}
}

// A watch ends with its key. What happens later is not for it, whoever has the namespace then.
func TestAWatchEndsWithItsKey(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	r := httptest.NewRequest("GET", objects+"services?watch=true", nil)
	r.Header.Set("Authorization", "Bearer "+h.key.String())
	from, to := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.http.ServeHTTP(&told{httptest.NewRecorder(), to}, r)
		to.Close()
	}()
	lines := bufio.NewReader(from)
	h.must("POST", objects+"services", described("before", "example.com/hello"))
	if line, err := lines.ReadString('\n'); !strings.Contains(line, `"before"`) {
		t.Fatalf("the watch is told %q, %v", line, err)
	}
	h.key = access.NewKey()
	if err := h.api.cfg.Directory.Add(&access.Subject{Name: "ann",
		Namespaces: []access.Namespace{h.key.Owned("ann")}}); err != nil {
		t.Fatal(err)
	}
	h.must("POST", objects+"services", described("after", "example.com/hello"))
	rest, err := io.ReadAll(lines)
	if err != nil || strings.Contains(string(rest), `"after"`) {
		t.Errorf("then the watch is told %s, %v", rest, err)
	}
	<-ended
}

// A told recorder passes on what is written.
type told struct {
	*httptest.ResponseRecorder
	to io.Writer
}

func (t *told) Write(p []byte) (int, error) { return t.to.Write(p) }

// A namespace has so many watches. A client that wants one more is told when to come again, and
// gets one once another has ended.
func TestWatchesAreBounded(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	var end func()
	for range mostWatches {
		var err error
		if end, err = h.api.watches.enter("ann"); err != nil {
			t.Fatal(err)
		}
	}
	r, w := h.request("GET", objects+"services?watch=true&timeoutSeconds=3", "")
	h.http.ServeHTTP(w, r)
	if w.Code != 429 || w.Header().Get("Retry-After") == "" ||
		!strings.Contains(w.Body.String(), "TooManyRequests") {
		t.Errorf("one more watch is answered %d %v %s", w.Code, w.Header(), w.Body)
	}
	end()
	code, said := h.ask("GET", objects+"services?watch=true&timeoutSeconds=3", "", "")
	if code != 200 {
		t.Errorf("a watch in the place of another is answered %d %s", code, said)
	}
	if _, err := h.api.watches.enter("ann"); err != nil {
		t.Errorf("a watch that has ended is counted: %v", err)
	}
}
