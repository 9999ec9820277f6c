package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/fastiov/fastiov/node-agent/api/metrics"
)

// newRegistry is what a process counts in: at first, what every process of ours tells of itself.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.Build(version), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// counting is where an invoker counts: nowhere, if nobody can ask at that address.
func counting(address string, registry *prometheus.Registry) prometheus.Registerer {
	if address == "" {
		return nil
	}
	return registry
}

// serveMetrics serves what Prometheus and, where there is a query, Grafana ask for; an empty address is nowhere.
func serveMetrics(address string, registry *prometheus.Registry, query http.Handler, log *slog.Logger) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w; choose another address with --metrics", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Page(registry))
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
