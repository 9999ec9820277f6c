// Package couchtest is a CouchDB for tests. It holds OpenWhisk's three databases and refuses the
// requests that a real one would, and any activation whose shape a cluster's views and controllers
// could not read.
package couchtest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// User and Password open the databases.
const (
	User     = "whisk_admin"
	Password = "some_passw0rd"
	Prefix   = "test_"
)

// A Server is a CouchDB. A fault in its requests or documents fails the test.
type Server struct {
	URL     *url.URL // with the prefix of the databases as its path
	MaxBody int      // of a document; as CouchDB's max_document_size

	t           testing.TB
	http        *httptest.Server
	mu          sync.Mutex
	whisks      map[string]entity
	activations map[string]map[string]any
	blocked     []string
	fail        []int // statuses of the next writes of activations
	swallow     int   // how many of the next writes are kept and answered 500
	gets        map[string]int
}

type entity struct {
	document    map[string]any
	attachments map[string][]byte
}

// New returns a server that ends with the test.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, MaxBody: 8 << 20, whisks: map[string]entity{},
		activations: map[string]map[string]any{}, gets: map[string]int{}}
	mux := http.NewServeMux()
	for _, db := range []string{"whisks", "activations", "subjects"} {
		mux.HandleFunc("GET /"+Prefix+db, func(w http.ResponseWriter, _ *http.Request) {
			s.answer(w, 200, map[string]any{"db_name": db})
		})
	}
	mux.HandleFunc("GET /"+Prefix+"whisks/{id}", s.getAction)
	mux.HandleFunc("GET /"+Prefix+"whisks/{id}/{attachment}", s.getAttachment)
	mux.HandleFunc("PUT /"+Prefix+"activations/{id}", s.putActivation)
	mux.HandleFunc("GET /"+Prefix+"subjects/_design/namespaceThrottlings/_view/blockedNamespaces",
		s.getBlocked)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("CouchDB was asked %s %s", r.Method, r.URL)
		s.refuse(w, 404, "not_found", "missing")
	})
	s.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != User || password != Password {
			s.refuse(w, 401, "unauthorized", "Name or password is incorrect.")
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(s.http.Close)
	at, err := url.Parse(s.http.URL + "/" + Prefix)
	if err != nil {
		t.Fatal(err)
	}
	s.URL = at
	return s
}

// PutAction keeps an action's document, which is JSON, under its namespace and name, and returns
// its revision.
func (s *Server) PutAction(document string, attachments map[string][]byte) (revision string) {
	s.t.Helper()
	var doc map[string]any
	if err := json.Unmarshal([]byte(document), &doc); err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := fmt.Sprintf("%s/%s", doc["namespace"], doc["name"])
	generation := 1
	if old, found := s.whisks[id]; found {
		_, _ = fmt.Sscanf(old.document["_rev"].(string), "%d-", &generation)
		generation++
	}
	revision = fmt.Sprintf("%d-0123abcd", generation)
	doc["_id"], doc["_rev"] = id, revision
	s.whisks[id] = entity{doc, attachments}
	return revision
}

// DeleteAction forgets it.
func (s *Server) DeleteAction(id string) { s.mu.Lock(); defer s.mu.Unlock(); delete(s.whisks, id) }

// Gets returns how often the action's document was read.
func (s *Server) Gets(id string) int { s.mu.Lock(); defer s.mu.Unlock(); return s.gets[id] }

// Block has the view of blocked namespaces list these.
func (s *Server) Block(namespaces ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocked = namespaces
}

// FailWrites has the next writes of activations answered with these statuses.
func (s *Server) FailWrites(statuses ...int) { s.mu.Lock(); defer s.mu.Unlock(); s.fail = statuses }

// SwallowAnswers has the next n writes of activations kept, and their writers not told so.
func (s *Server) SwallowAnswers(n int) { s.mu.Lock(); defer s.mu.Unlock(); s.swallow = n }

// Activation is the document of an activation, nil if there is none.
func (s *Server) Activation(namespace, id string) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.activations[namespace+"/"+id]
}

// Activations counts them.
func (s *Server) Activations() int { s.mu.Lock(); defer s.mu.Unlock(); return len(s.activations) }

func (s *Server) answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func (s *Server) refuse(w http.ResponseWriter, status int, name, reason string) {
	s.answer(w, status, map[string]string{"error": name, "reason": reason})
}

func (s *Server) getAction(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := r.PathValue("id")
	s.gets[id]++
	found, ok := s.whisks[id]
	if !ok {
		s.refuse(w, 404, "not_found", "deleted")
		return
	}
	s.answer(w, 200, found.document)
}

func (s *Server) getAttachment(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.whisks[r.PathValue("id")]
	content, ok := found.attachments[r.PathValue("attachment")]
	if rev := r.URL.Query().Get("rev"); !ok || rev != "" && rev != found.document["_rev"] {
		s.refuse(w, 404, "not_found", "Document is missing attachment")
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(content)
}

func (s *Server) getBlocked(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.URL.Query().Get("reduce") != "false" {
		s.answer(w, 200,
			map[string]any{"rows": []any{map[string]any{"key": nil, "value": len(s.blocked)}}})
		return
	}
	rows := []map[string]any{}
	for _, namespace := range s.blocked {
		rows = append(rows, map[string]any{"id": namespace + "/limits", "key": namespace,
			"value": 1})
	}
	s.answer(w, 200, map[string]any{"total_rows": len(rows), "rows": rows})
}

func (s *Server) putActivation(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.fail) > 0 {
		status := s.fail[0]
		s.fail = s.fail[1:]
		s.refuse(w, status, "error", "as the test wants it")
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if len(body) > s.MaxBody {
		s.refuse(w, 413, "document_too_large", r.PathValue("id"))
		return
	}
	var doc map[string]any
	if err := json.Unmarshal(body, &doc); err != nil ||
		!strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		s.refuse(w, 400, "bad_request", "invalid UTF-8 JSON")
		return
	}
	id := r.PathValue("id")
	for _, wrong := range faults(id, doc) {
		s.t.Errorf("activation %s: %s", id, wrong)
	}
	if _, found := s.activations[id]; found {
		s.refuse(w, 409, "conflict", "Document update conflict.")
		return
	}
	s.activations[id] = doc
	if s.swallow > 0 {
		s.swallow--
		s.refuse(w, 500, "internal_server_error", "as the test wants it")
		return
	}
	s.answer(w, 201, map[string]any{"ok": true, "id": id, "rev": "1-0123abcd"})
}
