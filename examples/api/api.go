// Package api is an example of an API of the invoker, a wing beside OpenWhisk's. It runs programs
// of plain HTTP: a request of /run/IMAGE/PATH goes to a sandbox of that image as one of /PATH. The
// sandbox then waits for the next request of its caller's namespace.
package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/pool"
	node "github.com/fastiov/fastiov/node-agent/api"
)

// Path is the path below which the API is served.
const Path = "/run/"

// Port is the TCP port on which the programs listen.
const Port = 8080

const memoryMiB = 256

// An API passes requests on to sandboxes.
type API struct {
	pool  *pool.Pool
	admit func(http.ResponseWriter, *http.Request) *access.Identity
	mux   *http.ServeMux
}

// New returns an API over the pool. Where admit returns no identity, it has answered the request.
func New(
	sandboxes *pool.Pool, admit func(http.ResponseWriter, *http.Request) *access.Identity,
) http.Handler {
	a := &API{pool: sandboxes, admit: admit, mux: http.NewServeMux()}
	a.mux.HandleFunc(Path+"{image}/{path...}", a.run)
	return a.mux
}

func (a *API) run(w http.ResponseWriter, r *http.Request) {
	caller := a.admit(w, r)
	if caller == nil {
		return
	}
	image := r.PathValue("image")
	demand := pool.Demand{
		Namespace: caller.Namespace, Group: Path + image, Image: image, MemoryMiB: memoryMiB,
		Start: func() (*node.StartRequest, error) {
			return &node.StartRequest{
				Image: image, Namespace: caller.Namespace, Protocol: "http", Port: Port,
			}, nil
		},
	}
	type grant struct {
		lease *pool.Lease
		err   error
	}
	grants := make(chan grant, 1)
	a.pool.Acquire(demand, func(l *pool.Lease, err error) { grants <- grant{l, err} })
	for again := true; again; {
		got := <-grants
		if got.err != nil {
			http.Error(w, got.err.Error(), code(got.err))
			return
		}
		again = pass(got.lease, w, r)
	}
}

// pass has the request answered by the sandbox of the lease, and gives the lease back. again: that
// sandbox has ended, and the request gets another grant.
func pass(l *pool.Lease, w http.ResponseWriter, r *http.Request) (again bool) {
	ctx, hangUp := context.WithCancel(r.Context())
	defer hangUp()
	defer context.AfterFunc(l.Context(), hangUp)()
	conn, err := node.Connect(ctx, l.Client(), l.Sandbox, Port)
	switch {
	case err != nil && l.Retry(err):
		return true
	case err != nil:
		l.Release(r.Context().Err() != nil) // the sandbox is good if the caller left
		http.Error(w, err.Error(), http.StatusBadGateway)
		return false
	}
	defer conn.Close()
	var fault error
	whole := false // the proxy panics where an answer breaks off
	defer func() { l.Release(whole && fault == nil) }()
	proxy := &httputil.ReverseProxy{
		Rewrite: func(out *httputil.ProxyRequest) {
			out.Out.URL.Scheme, out.Out.URL.Host = "http", out.In.Host
			_, escaped, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), Path), "/")
			out.Out.URL.Path, out.Out.URL.RawPath = "/"+r.PathValue("path"), "/"+escaped
			out.Out.Header.Del("Authorization") // the key is not the program's
		},
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true,
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				return conn, nil
			},
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			fault = err
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	_ = http.NewResponseController(w).EnableFullDuplex() // a program may answer while it reads
	proxy.ServeHTTP(w, r.WithContext(ctx))
	whole = true
	return false
}

// code returns the status of an answer that a request without a sandbox gets.
func code(err error) int {
	var refused *pool.Refused
	switch {
	case errors.As(err, &refused) && refused.TooMany:
		return http.StatusTooManyRequests
	case errors.As(err, &refused), status.Code(err) == codes.ResourceExhausted:
		return http.StatusServiceUnavailable
	}
	return http.StatusBadGateway
}
