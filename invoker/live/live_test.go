package live

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestTheFilesOfThePage(t *testing.T) {
	_, url := serve(t, nil)
	index := content(t, request(t, "GET", url+"/ui", "", ""))
	links := regexp.MustCompile(`(?:href|src)="(/[^"]*)"`).FindAllStringSubmatch(index, -1)
	if len(links) < 5 {
		t.Fatalf("the page names %d files: %s", len(links), index)
	}
	for _, link := range links {
		resp := request(t, "GET", url+link[1], "", "")
		kind := resp.Header.Get("Content-Type")
		if resp.StatusCode != 200 || strings.HasPrefix(kind, "text/html") ||
			content(t, resp) == "" {
			t.Errorf("%s: HTTP %d, %s", link[1], resp.StatusCode, kind)
		}
	}
	resp := request(t, "GET", url+"/ui/page.js", "", "")
	again, err := http.NewRequest("GET", url+"/ui/page.js", nil)
	if err != nil {
		t.Fatal(err)
	}
	again.Header.Set("If-None-Match", resp.Header.Get("ETag"))
	same, err := http.DefaultClient.Do(again)
	if err != nil || same.StatusCode != http.StatusNotModified {
		t.Errorf("asked whether it has changed: %v, %v", same, err)
	}
	same.Body.Close()
	for _, path := range []string{"/ui/nothing", "/ui/page/index.html", "/uirelated", "/"} {
		if resp := request(t, "GET", url+path, "", ""); resp.StatusCode != 404 {
			t.Errorf("%s: HTTP %d", path, resp.StatusCode)
		}
	}
	if resp := request(t, "GET", url+"/ui/", "", ""); resp.Request.URL.Path != "/ui" {
		t.Errorf("/ui/ leads to %s", resp.Request.URL.Path)
	}
}

// The page runs and loads only what is its own, and nothing in it is written in a form that the
// policy forbids.
func TestNothingOfOthersRuns(t *testing.T) {
	_, url := serve(t, nil)
	for _, path := range []string{"/ui", "/ui/page.js", "/ui/feed", "/ui/burst"} {
		h := request(t, "GET", url+path, "", "").Header
		policy := h.Get("Content-Security-Policy")
		if !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") ||
			!strings.Contains(policy, "frame-ancestors 'none'") {
			t.Errorf("%s: policy %q", path, policy)
		}
		if h.Get("Access-Control-Allow-Origin") != "" ||
			h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", path, h)
		}
	}
	inline := regexp.MustCompile(
		`(?i)<script(?:>|[^>]*[^>]>[^<])|<style|\sstyle=|\son\w+=|javascript:|https?://`)
	if found := inline.FindString(content(t, request(t, "GET", url+"/ui", "", ""))); found != "" {
		t.Errorf("index.html has %q", found)
	}
	unsafe := regexp.MustCompile(
		`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function`)
	for _, name := range []string{"page.js", "feed.js", "figures.js", "waterfall.js"} {
		if found := unsafe.FindString(content(t,
			request(t, "GET", url+"/ui/"+name, "", ""))); found != "" {
			t.Errorf("%s has %q: texts of functions become elements", name, found)
		}
	}
}

func TestTheOpenKeyIsGivenAndNoOther(t *testing.T) {
	for key, want := range map[string]string{
		"": `name="fastiov-key" content=""`, `a:"b<`: `content="a:&#34;b&lt;"`,
	} {
		w := httptest.NewRecorder()
		New(Config{OpenKey: key}).ServeHTTP(w, httptest.NewRequest("GET", "/ui", nil))
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("with the key %q the page has no %s", key, want)
		}
	}
}

func TestWhoMayNotInvokeMayNothing(t *testing.T) {
	fired := func(context.Context, string, int) (any, error) {
		t.Error("a burst was fired")
		return nil, nil
	}
	_, url := serve(t, fired, newNode())
	for _, r := range [][2]string{{"GET", "/ui/feed"}, {"POST", "/ui/burst"}} {
		if resp := request(t, r[0], url+r[1],
			"", `{"n":1}`); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s %s without a key: HTTP %d", r[0], r[1], resp.StatusCode)
		}
	}
	if resp := request(t, "GET", url+"/ui/burst", "ann",
		""); resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a burst by GET: HTTP %d", resp.StatusCode)
	}
}

func TestBurst(t *testing.T) {
	hold := make(chan struct{})
	under := make(chan struct{}, 1)
	fire := func(ctx context.Context, key string, n int) (any, error) {
		if n == 200 {
			under <- struct{}{}
			select {
			case <-hold:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		if n == 13 {
			return nil, errors.New("no such luck")
		}
		return map[string]any{"key": key, "n": n}, nil
	}
	page, url := serve(t, fire)
	for body, want := range map[string]int{
		`{"n":7}`: 200, `{"n":13}`: 502, `{"n":0}`: 400, `{"n":201}`: 400, `{"n":-1}`: 400,
		`{"n":"x"}`: 400, `{`: 400, ``: 400,
		`{"n":1` + strings.Repeat(" ", 2000) + `}`: 400,
	} {
		if resp := request(t, "POST", url+"/ui/burst", "ann", body); resp.StatusCode != want {
			t.Errorf("%.20s: HTTP %d %s, want %d", body, resp.StatusCode, content(t, resp), want)
		}
	}
	if got := content(t, request(t, "POST", url+"/ui/burst",
		"ann", `{"n":7}`)); got != `{"key":"ann:secret","n":7}` {
		t.Errorf("the burst was fired with %s", got)
	}
	foreign, err := http.NewRequestWithContext(t.Context(), "POST", url+"/ui/burst",
		strings.NewReader(`{"n":7}`))
	if err != nil {
		t.Fatal(err)
	}
	foreign.SetBasicAuth("ann", "secret")
	foreign.Header.Set("Sec-Fetch-Site", "cross-site")
	if resp, err := http.DefaultClient.Do(foreign); err != nil ||
		resp.StatusCode != http.StatusForbidden {
		t.Errorf("a form of another site: %v %v", resp, err)
	} else {
		resp.Body.Close()
	}
	first := make(chan *http.Response)
	send := func() { first <- request(t, "POST", url+"/ui/burst", "ann", `{"n":200}`) }
	go send()
	<-under
	if resp := request(t, "POST", url+"/ui/burst",
		"bob", `{"n":1}`); resp.StatusCode != http.StatusConflict {
		t.Errorf("beside another burst: HTTP %d", resp.StatusCode)
	}
	close(hold)
	if resp := <-first; resp.StatusCode != 200 {
		t.Errorf("the first: HTTP %d", resp.StatusCode)
	}
	hold = make(chan struct{})
	go send()
	<-under
	page.Close()
	if resp := <-first; resp.StatusCode != http.StatusBadGateway {
		t.Errorf("the page was closed: HTTP %d", resp.StatusCode)
	}
}

func TestABurstEndsWithItsPage(t *testing.T) {
	ended := make(chan struct{})
	under := make(chan struct{})
	_, url := serve(t, func(ctx context.Context, _ string, _ int) (any, error) {
		close(under)
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	})
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "POST", url+"/ui/burst", strings.NewReader(`{"n":1}`))
	if err != nil {
		t.Fatal(err)
	}
	r.SetBasicAuth("ann", "secret")
	go func() {
		if resp, err := http.DefaultClient.Do(r); err == nil {
			resp.Body.Close()
		}
	}()
	<-under
	leave()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the burst goes on")
	}
}

func TestTakesGzip(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "gzip": true, "deflate, gzip;q=0.5": true, "gzip;q=0": false, "gzip; q=0": false,
		"br": false,
	} {
		r := httptest.NewRequest("GET", "/ui", nil)
		r.Header.Set("Accept-Encoding", header)
		if takesGzip(r) != want {
			t.Errorf("%q: %v", header, !want)
		}
	}
}
