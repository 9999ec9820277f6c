package traces

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// mostBytes bounds an unpacked batch.
const mostBytes = 8 << 20

// Collect serves OTLP over HTTP as protobuf: POST /v1/traces.
func (s *Store) Collect() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		batch, status, err := read(w, r)
		if err != nil {
			http.Error(w, err.Error(), status)
			return
		}
		s.Add(batch.GetResourceSpans())
		answer, err := proto.Marshal(&collectorpb.ExportTraceServiceResponse{})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(answer) // if the sender has gone, there is nobody to answer
	})
}

func read(
	w http.ResponseWriter, r *http.Request,
) (*collectorpb.ExportTraceServiceRequest, int, error) {
	if kind := r.Header.Get("Content-Type"); kind != "application/x-protobuf" {
		return nil, http.StatusUnsupportedMediaType,
			fmt.Errorf("the content type is %q; OTLP as application/x-protobuf is taken", kind)
	}
	var body io.Reader = http.MaxBytesReader(w, r.Body, mostBytes)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			return nil, http.StatusBadRequest, fmt.Errorf("the body is no gzip: %w", err)
		}
		body = io.LimitReader(unzipped, mostBytes+1)
	}
	content, err := io.ReadAll(body)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) || len(content) > mostBytes {
		return nil, http.StatusRequestEntityTooLarge,
			fmt.Errorf("the batch is larger than %d bytes; send smaller ones", mostBytes)
	}
	if err != nil {
		return nil, http.StatusBadRequest, err
	}
	batch := &collectorpb.ExportTraceServiceRequest{}
	if err := proto.Unmarshal(content, batch); err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("the batch is no OTLP: %w", err)
	}
	return batch, 0, nil
}
