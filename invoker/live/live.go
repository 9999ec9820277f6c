package live

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"html"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/fastiov/fastiov/invoker/access"
)

// Config holds what a page needs.
type Config struct {
	Version string
	Nodes   []Named
	Waiting func() int // returns how many calls wait in the invoker for a sandbox
	// Admit returns the sender of a request. If the sender may not send it, Admit has answered it
	// and returns nil.
	Admit func(http.ResponseWriter, *http.Request) *access.Identity
	// Burst fires n calls at once with the caller's key, and returns the result, which the page
	// shows as JSON.
	Burst func(ctx context.Context, key string, n int) (any, error)
	// OpenKey is a key that everybody who can reach the page may use. If it is empty, the page asks
	// for a key.
	OpenKey string
}

// Path is the URL path of the page. Everything below it belongs to the page.
const Path = "/ui"

// A Page is the handler of everything under Path.
type Page struct {
	cfg    Config
	mux    *http.ServeMux
	watch  *watch
	burst  chan struct{} // has room for one value, which the burst under way puts there
	closed chan struct{}
	close  sync.Once
	slow   time.Duration
	quiet  time.Duration
}

//go:embed page
var files embed.FS

// New returns a page. It polls the nodes only while somebody reads.
func New(cfg Config) *Page {
	p := &Page{
		cfg: cfg, mux: http.NewServeMux(), watch: newWatch(cfg.Nodes, cfg.Waiting),
		burst: make(chan struct{}, 1), closed: make(chan struct{}), slow: slow,
		quiet: quiet,
	}
	entries, err := fs.ReadDir(files, "page")
	if err != nil {
		panic(err) // the files are embedded, so this cannot fail
	}
	for _, entry := range entries {
		content, err := files.ReadFile("page/" + entry.Name())
		if err != nil {
			panic(err)
		}
		if entry.Name() == "index.html" {
			content = bytes.ReplaceAll(content, []byte("{{key}}"),
				[]byte(html.EscapeString(cfg.OpenKey)))
			p.mux.Handle("GET "+Path, newFile(entry.Name(), content))
			continue
		}
		p.mux.Handle("GET "+Path+"/"+entry.Name(), newFile(entry.Name(), content))
	}
	p.mux.HandleFunc("GET "+Path+"/feed", p.feed)
	p.mux.HandleFunc("POST "+Path+"/burst", p.fire)
	p.mux.Handle("GET "+Path+"/{$}", http.RedirectHandler(Path, http.StatusMovedPermanently))
	return p
}

// Over returns a handler that serves the page and passes all other requests to others.
func (p *Page) Over(others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rest, ours := strings.CutPrefix(r.URL.Path, Path); ours && (rest == "" ||
			rest[0] == '/') {
			p.ServeHTTP(w, r)
			return
		}
		others.ServeHTTP(w, r)
	})
}

func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	// Only our own files run or are loaded, nobody may frame the page, no other site may use it,
	// and no other site learns a URL of it.
	h.Set("Content-Security-Policy",
		"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	p.mux.ServeHTTP(w, r)
}

// Close ends all feeds and bursts.
func (p *Page) Close() { p.close.Do(func() { close(p.closed) }) }

// A file of the page, plain and compressed.
type file struct {
	kind, tag   string
	plain, gzip []byte
}

func newFile(name string, content []byte) *file {
	var packed bytes.Buffer
	z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // the level is valid
	_, _ = z.Write(content)                                    // a write to memory cannot fail
	_ = z.Close()
	sum := sha256.Sum256(content)
	return &file{
		kind: mime.TypeByExtension(path.Ext(name)), tag: `"` + hex.EncodeToString(sum[:8]) + `"`,
		plain: content, gzip: packed.Bytes(),
	}
}

func (f *file) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Cache-Control", "no-cache") // a browser asks each time whether the file has changed
	h.Set("ETag", f.tag)
	h.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	content := f.plain
	if takesGzip(r) {
		h.Set("Content-Encoding", "gzip")
		content = f.gzip
	}
	_, _ = w.Write(content) // if the caller has gone, there is nobody to answer
}

func takesGzip(r *http.Request) bool {
	for _, coding := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		if name, weight, _ := strings.Cut(strings.TrimSpace(coding), ";"); name == "gzip" {
			return strings.ReplaceAll(weight, " ", "") != "q=0"
		}
	}
	return false
}

func refuse(w http.ResponseWriter, status int, why string) {
	answer(w, status, map[string]string{"error": why})
}

func answer(w http.ResponseWriter, status int, body any) {
	content, err := json.Marshal(body)
	if err != nil {
		panic(err) // every body consists of types that can be marshalled
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(content)
}
