package command

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/fastiov/fastiov/dashboards/traces"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// spansKept is the room of a store of traces, in spans: those of some two thousand cold starts, in
// about 12 MiB (BenchmarkAdd).
const spansKept = 32 << 10

// A tracing takes an invoker's cold starts.
type tracing struct {
	tracer trace.Tracer
	query  http.Handler // of this process's own store; nil: they go to a collector
	stop   func()
}

// openTraces sends cold starts to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names, or keeps
// the last of them here.
func openTraces(ctx context.Context) (*tracing, error) {
	t := &tracing{}
	var client otlptrace.Client
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" &&
		os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "" {
		store := traces.New(spansKept)
		client, t.query = store, store.Query()
	} else {
		client = otlptracehttp.NewClient()
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, err
	}
	provider := sdk.NewTracerProvider(
		// A burst of 200 has some 3000 spans.
		sdk.WithBatcher(exporter, sdk.WithMaxQueueSize(16<<10), sdk.WithBatchTimeout(time.Second)),
		sdk.WithIDGenerator(timeline.IDs{}),
		sdk.WithResource(resource.NewSchemaless(semconv.ServiceName("fastiov"),
			semconv.ServiceVersion(version))))
	t.tracer = provider.Tracer("github.com/fastiov/fastiov/invoker")
	t.stop = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = provider.Shutdown(ctx) // a collector that is away must not keep us
	}
	return t, nil
}

// tracesCmd runs a store of traces for invokers that are other processes.
func tracesCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "traces",
		Short: "Run a small store of traces, in the foreground: OTLP in, Jaeger's query API out",
		Args:  cobra.NoArgs}
	listen := cmd.Flags().String("listen", "127.0.0.1:4318",
		"where it is served; invokers find it by OTEL_EXPORTER_OTLP_ENDPOINT")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		listener, err := net.Listen("tcp", *listen)
		if err != nil {
			return fmt.Errorf("traces: %w; choose another address with --listen", err)
		}
		store := traces.New(spansKept)
		mux := http.NewServeMux()
		mux.Handle("POST /v1/traces", store.Collect())
		mux.Handle("GET /api/", store.Query())
		server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second,
			ReadTimeout: time.Minute}
		return serveUntil(cmd.Context(), []*http.Server{server}, []net.Listener{listener},
			slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
	}
	return cmd
}
