package openwhisk

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fastiov/fastiov/invoker/activation"
	"github.com/fastiov/fastiov/invoker/pool"
)

// Config is what an API is made of.
type Config struct {
	Version  string        // of the product, as GET /api/v1 reports it
	Key      Key           // who may call; see LoadKey
	APIHost  string        // what actions get as __OW_API_HOST, e.g. http://10.0.2.2:3233
	Blocking time.Duration // how long a blocking call waits at most, and by default; 0: 60 s, as OpenWhisk's
	InFlight int           // how many activations may be under way; 0: 1000
	Pool     pool.Config
}

// An API is the HTTP handler and what it remembers. Close ends it.
type API struct {
	cfg         Config
	mux         *http.ServeMux
	pool        *pool.Pool
	actions     actions
	activations *activation.Store
	metrics     *metrics
	inFlight    atomic.Int64
	running     sync.WaitGroup
}

// Together these bound what the API keeps: the newest activations, and the code of all actions.
const (
	activationBytes = 256 << 20
	codeBytes       = 1 << 30
)

// New returns an API that runs its actions on node and counts in registry.
func New(cfg Config, node pool.Node, registry prometheus.Registerer) (*API, error) {
	if cfg.Blocking == 0 {
		cfg.Blocking = time.Minute
	}
	if cfg.InFlight == 0 {
		cfg.InFlight = 1000
	}
	if cfg.Key.Secret == "" {
		return nil, fmt.Errorf("openwhisk: no key given; make one with LoadKey")
	}
	a := &API{
		cfg:         cfg,
		pool:        pool.New(cfg.Pool, node),
		actions:     actions{byPath: map[string]*action{}},
		activations: activation.NewStore(activationBytes),
	}
	var err error
	if a.metrics, err = newMetrics(registry, a.pool.Depth); err != nil {
		a.pool.Close()
		return nil, err
	}
	a.routes()
	return a, nil
}

func (a *API) routes() {
	const base = "/api/v1"
	a.mux = http.NewServeMux()
	a.mux.HandleFunc("GET "+base, a.info)
	for pattern, serve := range map[string]func(w http.ResponseWriter, r *http.Request, namespace string) error{
		"GET /namespaces":                                     a.listNamespaces,
		"GET /namespaces/{namespace}/actions":                 a.listActions,
		"PUT /namespaces/{namespace}/actions/{name}":          a.putAction,
		"GET /namespaces/{namespace}/actions/{name}":          a.getAction,
		"DELETE /namespaces/{namespace}/actions/{name}":       a.deleteAction,
		"POST /namespaces/{namespace}/actions/{name}":         a.invoke,
		"GET /namespaces/{namespace}/activations":             a.listActivations,
		"GET /namespaces/{namespace}/activations/{id}":        a.getActivation,
		"GET /namespaces/{namespace}/activations/{id}/logs":   a.getLogs,
		"GET /namespaces/{namespace}/activations/{id}/result": a.getResult,
		"GET /namespaces/{namespace}/packages":                a.listNothing,
		"GET /namespaces/{namespace}/triggers":                a.listNothing,
		"GET /namespaces/{namespace}/rules":                   a.listNothing,
	} {
		var method, path string
		fmt.Sscan(pattern, &method, &path) // a literal: cannot fail
		a.mux.Handle(method+" "+base+path, a.authenticated(serve))
	}
	a.mux.Handle("/", a.authenticated(func(_ http.ResponseWriter, r *http.Request, _ string) error {
		return notFound("%s %s is not served; this is the part of OpenWhisk's API for actions and activations", r.Method, r.URL.Path)
	}))
}

func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.mux.ServeHTTP(w, r) }

// Server returns a server for the API that no slow client can hold: headers, bodies and answers have their time.
func (a *API) Server() *http.Server {
	const transfer = 2 * time.Minute // of 64 MB of code, at worst
	return &http.Server{
		Handler:           a,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       transfer,
		WriteTimeout:      transfer + a.cfg.Blocking + transfer,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
	}
}

// Close cancels what is under way, ends every sandbox and returns when that is done and recorded.
func (a *API) Close() {
	a.pool.Close()
	a.running.Wait()
}

func (a *API) info(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]any{
		"description": "fastiov, a subset of the OpenWhisk API", "api_version": "1.0.0", "api_version_path": "v1",
		"build": a.cfg.Version, "buildno": a.cfg.Version,
	})
}

func (a *API) listNamespaces(w http.ResponseWriter, _ *http.Request, namespace string) error {
	answer(w, http.StatusOK, []string{namespace})
	return nil
}

func (a *API) listNothing(w http.ResponseWriter, _ *http.Request, _ string) error {
	answer(w, http.StatusOK, []any{})
	return nil
}
