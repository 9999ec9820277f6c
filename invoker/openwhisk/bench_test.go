package openwhisk

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/node-agent/api"
)

// The cost of a warm call, beside the cost without the invoker: a plain handler with the same
// authentication, that reads the body and answers with JSON. "handler" leaves out the connection,
// "http" is a client on loopback that keeps its connection.

func BenchmarkWarmInvoke(b *testing.B) {
	for _, keeps := range []bool{true, false} {
		b.Run(map[bool]string{true: "kept", false: "unkept"}[keeps], func(b *testing.B) {
			benchmarkWarm(b, keeps)
		})
	}
}

// unkept is a store that forgets every record. It shows the cost of the invoker without the
// writing.
type unkept struct{ store.Store }

func (unkept) Finish(*store.Record) {}

func benchmarkWarm(b *testing.B, keeps bool) {
	kept := openStore(b, filepath.Join(b.TempDir(), "store"))
	if !keeps {
		kept = unkept{kept}
	}
	c := newClientOf(b, Config{Store: kept,
		Pool: pool.Config{KeepAlive: time.Minute, Wait: time.Minute, Start: time.Minute}})
	c.put("hello")
	answer := &api.RunReply{Status: 200, Body: []byte(`{"hello":"you"}`), BeginNs: 1, EndNs: 2}
	c.node.run = func(context.Context, *api.RunRequest) (*api.RunReply, error) {
		return answer, nil
	}
	c.node.forgetful = true
	c.want(200, c.do("POST", "actions/hello?blocking=true", "{}"))
	compare(b, c.api)
}

// BenchmarkSequence measures the cost of a step beside a call of its own: a sequence of ten, each
// of which leaves a record.
func BenchmarkSequence(b *testing.B) {
	c := newClientOf(b, Config{Pool: pool.Config{KeepAlive: time.Minute, Wait: time.Minute,
		Start: time.Minute}})
	c.put("a")
	c.want(200, c.putSequence("hello", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a"))
	answer := &api.RunReply{Status: 200, Body: []byte(`{"hello":"you"}`), BeginNs: 1, EndNs: 2}
	c.node.run = func(context.Context, *api.RunRequest) (*api.RunReply, error) {
		return answer, nil
	}
	c.node.forgetful = true
	compare(b, c.api)
}

func BenchmarkPlainHandler(b *testing.B) {
	directory := access.NewDirectory(access.Limits{})
	if err := directory.Add(guest.subject()); err != nil {
		b.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/namespaces/{namespace}/actions/{name}",
		func(w http.ResponseWriter, r *http.Request) {
			user, secret, _ := r.BasicAuth()
			if _, err := directory.Identify(user, secret); err != nil {
				w.WriteHeader(401)
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				w.WriteHeader(400)
				return
			}
			var arguments map[string]any
			if err := json.Unmarshal(body, &arguments); err != nil {
				w.WriteHeader(400)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(
				map[string]any{"hello": arguments["name"]}); err != nil {
				b.Error(err)
			}
		})
	compare(b, mux)
}

func compare(b *testing.B, h http.Handler) {
	const path, body = "/api/v1/namespaces/_/actions/hello?blocking=true&result=true",
		`{"name":"you"}`
	b.Run("handler", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			r := httptest.NewRequest("POST", "http://127.0.0.1"+path, nil)
			r.SetBasicAuth(guest.UUID, guest.Secret)
			r.ContentLength = int64(len(body))
			var read bytes.Reader
			w := &sink{header: http.Header{}}
			for pb.Next() {
				read.Reset([]byte(body))
				r.Body = io.NopCloser(&read)
				clear(w.header)
				h.ServeHTTP(w, r)
				if w.status != 0 && w.status != 200 {
					b.Errorf("HTTP %d", w.status)
				}
			}
		})
	})
	b.Run("http", func(b *testing.B) {
		server := httptest.NewServer(h)
		defer server.Close()
		r := httptest.NewRequest("POST", "http://127.0.0.1"+path, nil)
		r.SetBasicAuth(guest.UUID, guest.Secret)
		request := fmt.Appendf(nil,
			"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			path, r.Header.Get("Authorization"), len(body), body)
		b.ReportAllocs()
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				b.Error(err)
				return
			}
			defer conn.Close()
			answers := bufio.NewReader(conn)
			for pb.Next() {
				if _, err := conn.Write(request); err != nil {
					b.Error(err)
					return
				}
				if err := skipAnswer(answers); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

// skipAnswer reads an answer as cheaply as can be, so that the client is not measured.
func skipAnswer(r *bufio.Reader) error {
	length := -1
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200 ")) {
			return fmt.Errorf("answer %q", line)
		}
		if rest, is := bytes.CutPrefix(line, []byte("Content-Length: ")); is {
			length = 0
			for _, digit := range bytes.TrimSpace(rest) {
				length = length*10 + int(digit-'0')
			}
		}
		if len(line) == 2 {
			_, err := r.Discard(length)
			return err
		}
	}
}

// sink is an answer that nobody reads.
type sink struct {
	header http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) WriteHeader(status int)      { s.status = status }
func (s *sink) Write(b []byte) (int, error) { return len(b), nil }
