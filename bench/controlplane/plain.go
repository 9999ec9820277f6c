package controlplane

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk"
)

// ServePlain serves the part of a call that remains without an invoker: it checks the key, reads
// the body, and answers JSON.
func ServePlain(l net.Listener) error {
	key, err := openwhisk.LoadKey(l.Addr().String(), "")
	if err != nil {
		return err
	}
	directory := access.NewDirectory(access.Limits{})
	if err := directory.Add(&access.Subject{Name: "guest",
		Namespaces: []access.Namespace{key.Owned("guest")}}); err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /api/v1", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /api/v1/namespaces/{namespace}/actions/{name}",
		func(w http.ResponseWriter, r *http.Request) {
			user, secret, _ := r.BasicAuth()
			if _, err := directory.Identify(user, secret); err != nil {
				http.Error(w, err.Error(), http.StatusUnauthorized)
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			// if the caller has gone, there is nobody to answer
			_ = json.NewEncoder(w).Encode(json.RawMessage(body))
		})
	return (&http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}).Serve(l)
}
