// Package echo is the program of sandboxes that run none and are asked for plain HTTP: it answers
// whatever HTTP can ask. The sim driver has it, so that everything above a driver works unchanged.
//
//	GET …                  a line that says what was asked, and of whom
//	anything with a body   the body, as it comes, and its trailers
//	application/grpc       the same: each message comes back, and the call is OK
//	Upgrade: websocket     each message comes back
//	GET /env, /headers     what the program has as environment, what the request had as headers
//	GET /files             the files that the program is given, by their paths
//	GET /events?n=3        n events of a stream, each flushed by itself
//
// Any of them takes ?sleep=50ms and ?status=503.
package echo

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/websocket"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

// A Program is the program in one sandbox.
type Program struct {
	Env    map[string]string
	Mounts []wire.Mount
	Log    func(line string) // takes what it logs; one line a request
}

// Serve has handler answer on one connection, in HTTP/1.1 or in HTTP/2, until that is closed.
func Serve(conn net.Conn, handler http.Handler) {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: handler, Protocols: protocols}
	_ = server.Serve(&only{Conn: conn}) // until there is no other connection
}

// ServeHTTP implements http.Handler.
func (p *Program) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asked := r.URL.Query()
	if late, err := time.ParseDuration(asked.Get("sleep")); err == nil {
		select {
		case <-time.After(late):
		case <-r.Context().Done():
			return
		}
	}
	status, err := strconv.Atoi(asked.Get("status"))
	if err != nil || status < 200 || status > 999 {
		status = http.StatusOK
	}
	p.Log(fmt.Sprintf("sim: %s %s %s answered %d", r.Proto, r.Method, r.URL.Path, status))
	switch {
	case strings.EqualFold(r.Header.Get("Upgrade"), "websocket"):
		websocket.Server{Handler: talk}.ServeHTTP(w, r)
	case r.ContentLength != 0: // of HTTP/2 each request has a Body
		returnBody(w, r, status)
	case r.URL.Path == "/env":
		answer(w, status, p.Env)
	case r.URL.Path == "/files":
		answer(w, status, p.files())
	case r.URL.Path == "/headers":
		answer(w, status, r.Header)
	case r.URL.Path == "/events":
		events(w, asked.Get("n"))
	default:
		w.WriteHeader(status)
		fmt.Fprintf(w, "sim: %s %s of %s\n", r.Method, r.URL.Path, r.Host)
	}
}

// files returns the content of each file that the program is given.
func (p *Program) files() map[string]string {
	all := map[string]string{}
	for _, m := range p.Mounts {
		for _, f := range m.Files {
			all[path.Join(m.Path, f.Name)] = string(f.Data)
		}
	}
	return all
}

func answer(w http.ResponseWriter, status int, what any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(what) // who has gone gets no answer
}

// talk returns each message of a WebSocket as it came, text or binary.
func talk(ws *websocket.Conn) {
	codec := websocket.Codec{
		Marshal: func(v any) ([]byte, byte, error) {
			m := v.(*message)
			return m.data, m.kind, nil
		},
		Unmarshal: func(data []byte, kind byte, v any) error {
			*v.(*message) = message{append([]byte(nil), data...), kind}
			return nil
		},
	}
	for {
		var m message
		if codec.Receive(ws, &m) != nil || codec.Send(ws, &m) != nil {
			return
		}
	}
}

type message struct {
	data []byte
	kind byte
}

// returnBody answers while it reads: what has come is sent before more is awaited. Trailers that
// the request announces come back, and a call of gRPC ends as one should.
func returnBody(w http.ResponseWriter, r *http.Request, status int) {
	both := http.NewResponseController(w)
	_ = both.EnableFullDuplex() // HTTP/2 is always so
	h := w.Header()
	h.Set("Content-Type", r.Header.Get("Content-Type"))
	for name := range r.Trailer {
		h.Add("Trailer", name)
	}
	w.WriteHeader(status)
	_ = both.Flush()
	buffer := make([]byte, 32<<10)
	for {
		n, err := r.Body.Read(buffer)
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return
			}
			_ = both.Flush()
		}
		if err == io.EOF {
			break
		} else if err != nil {
			panic(http.ErrAbortHandler) // who got half of a body is told
		}
	}
	for name, values := range r.Trailer {
		h[name] = values
	}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		h.Set(http.TrailerPrefix+"Grpc-Status", "0")
	}
}

func events(w http.ResponseWriter, count string) {
	n, err := strconv.Atoi(count)
	if err != nil {
		n = 3
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range n {
		fmt.Fprintf(w, "data: %d\n\n", i)
		_ = http.NewResponseController(w).Flush()
	}
}

// only is a listener that has one connection.
type only struct {
	net.Conn
	taken bool
}

// Accept implements net.Listener.
func (o *only) Accept() (net.Conn, error) {
	if o.taken {
		return nil, net.ErrClosed
	}
	o.taken = true
	return o.Conn, nil
}

// Close implements net.Listener: the connection stays open.
func (o *only) Close() error { return nil }

// Addr implements net.Listener.
func (o *only) Addr() net.Addr { return o.LocalAddr() }
