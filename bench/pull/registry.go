package pull

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// A Registry serves OCI layouts, each as the image of its name, with ranges of blobs.
type Registry struct {
	Host   string
	images map[string]string // directories of layouts, by name
	server http.Server
	pace   pace
}

// ServeImages serves the layouts on the loopback until the registry is closed.
func ServeImages(images map[string]string) (*Registry, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Registry{Host: l.Addr().String(), images: images}
	r.server.Handler = r
	go func() { _ = r.server.Serve(listener{l, r}) }()
	return r, nil
}

// Close ends the registry.
func (r *Registry) Close() error { return r.server.Close() }

// Limit bounds what goes over the wire, of all connections together; 0: nothing does.
func (r *Registry) Limit(mbits int) { r.pace.set(float64(mbits) * 1e6 / 8) }

// ServeHTTP answers what a pull asks: /v2/, /v2/NAME/manifests/REFERENCE and /v2/NAME/blobs/DIGEST.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	if len(parts) == 1 && parts[0] == "v2" {
		return
	}
	end := len(parts) - 2 // of the name, which may have slashes
	if end < 2 || r.images[strings.Join(parts[1:end], "/")] == "" {
		http.NotFound(w, req)
		return
	}
	dir, digest := r.images[strings.Join(parts[1:end], "/")], parts[end+1]
	w.Header().Set("Content-Type", "application/octet-stream")
	if parts[end] == "manifests" {
		manifest, err := manifestOf(dir)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		digest = manifest.Digest.String()
		w.Header().Set("Content-Type", string(manifest.MediaType))
	}
	w.Header().Set("Docker-Content-Digest", digest)
	http.ServeFile(w, req, filepath.Join(dir, "blobs", strings.Replace(digest, ":", "/", 1)))
}

// DigestOf returns the digest of a layout's image.
func DigestOf(dir string) (string, error) {
	d, err := manifestOf(dir)
	return d.Digest.String(), err
}

func manifestOf(dir string) (d v1.Descriptor, err error) {
	var index v1.IndexManifest
	b, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err == nil {
		err = json.Unmarshal(b, &index)
	}
	if err == nil && len(index.Manifests) != 1 {
		err = fmt.Errorf("%s has %d images instead of one", dir, len(index.Manifests))
	}
	if err != nil {
		return d, err
	}
	return index.Manifests[0], nil
}

// A listener's connections are paced.
type listener struct {
	net.Listener
	r *Registry
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if l.r.pace.off() { // the kernel copies files to such a connection by itself
		return c, nil
	}
	return paced{c, l.r}, nil
}

const wireStep = 64 << 10

type paced struct {
	net.Conn
	r *Registry
}

func (c paced) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		step := b[n:min(len(b), n+wireStep)]
		time.Sleep(time.Until(c.r.pace.turn(len(step))))
		var more int
		more, err = c.Conn.Write(step)
		n += more
	}
	return n, err
}

// pace gives bytes their turn on a wire.
type pace struct {
	mu    sync.Mutex
	speed float64 // bytes a second; 0: no bound
	next  time.Time
}

// So much of the time that nobody used, or that a late timer lost, is made good.
const catchUp = 2 * time.Millisecond

func (p *pace) set(speed float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.speed, p.next = speed, time.Time{}
}

func (p *pace) off() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.speed == 0
}

func (p *pace) turn(bytes int) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.speed == 0 {
		return time.Time{}
	}
	if earliest := time.Now().Add(-catchUp); p.next.Before(earliest) {
		p.next = earliest
	}
	p.next = p.next.Add(time.Duration(float64(bytes) / p.speed * float64(time.Second)))
	return p.next
}
