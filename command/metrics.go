package command

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/node-agent/api/metrics"
)

// The role of a process in the metrics of memory: one of them, or both.
const (
	asAgent   = "agent"
	asInvoker = "invoker"
	asBoth    = "both"
)

// newRegistry returns the registry that a process counts in. At first it has the metrics that every
// process of ours has.
func newRegistry(process string) *prometheus.Registry {
	registry := ofProcess(process)
	registry.MustRegister(metrics.Build(version))
	return registry
}

// ofProcess returns a registry with the metrics of the process alone. An agent that an invoker
// starts uses it, because the invoker already shows the version.
func ofProcess(process string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	prometheus.WrapRegistererWith(prometheus.Labels{"process": process}, registry).MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// counting returns the registry that an invoker counts in, or nil if nobody can ask at that
// address.
func counting(address string, registry *prometheus.Registry) prometheus.Registerer {
	if address == "" {
		return nil
	}
	return registry
}

const whatMetrics = "metrics"

// storeOf is the store of this process's invoker, once that serves.
var storeOf atomic.Pointer[store.Store]

// notReady returns the reason why this process should not be sent anything. Once it serves, also is
// asked as well.
func notReady(also func() error) error {
	if !serves.Load() {
		return errors.New("it is starting or stopping; its log says how far it is")
	}
	if kept := storeOf.Load(); kept != nil {
		if err := (*kept).Broken(); err != nil {
			return err
		}
	}
	if also != nil {
		return also()
	}
	return nil
}

// serveMetrics serves the metrics that Prometheus asks for and, if there is a query, those that
// Grafana asks for. The address is host:port, or the path of a Unix socket that a group may open;
// an empty one is not served. Once this process serves, /readyz asks also as well.
func serveMetrics(
	address string, group int, page, query http.Handler, also func() error, log *slog.Logger,
) (stop func(), err error) {
	var listener net.Listener
	switch {
	case address == "":
		return func() {}, nil
	case filepath.IsAbs(address):
		listener, err = listenLocal(address, group)
	default:
		listener, err = openDoor(whatMetrics, "metrics", address)
	}
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", page)
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {}) // 200: it answers
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if why := notReady(also); why != nil {
			http.Error(w, "not ready: "+why.Error(), http.StatusServiceUnavailable)
		}
	})
	if query != nil {
		mux.Handle("GET /api/", query)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics", "err", err)
		}
	}()
	return func() { server.Close() }, nil
}
