package openwhisk

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// serve runs the server that the product runs, with the limits that a test sets.
func (c *client) serve(set func(*http.Server)) (address string) {
	c.t.Helper()
	server := c.api.Server()
	set(server)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	c.t.Cleanup(func() {
		server.Close()
		<-served
	})
	return listener.Addr().String()
}

// dial connects and sends; the connection ends with the test, and in ten seconds at the latest.
func (c *client) dial(address, send string) net.Conn {
	c.t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		c.t.Fatal(err)
	}
	fmt.Fprint(conn, send)
	return conn
}

func (c *client) head(method, path string, length int) string {
	auth := base64.StdEncoding.EncodeToString([]byte(c.key.String()))
	return fmt.Sprintf(
		"%s /api/v1/namespaces/_/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Basic %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
		method, path, auth, length)
}

// dropped fails unless the server closes the connection.
func dropped(t *testing.T, conn net.Conn) string {
	t.Helper()
	rest, err := io.ReadAll(conn)
	if err != nil && strings.Contains(err.Error(), "timeout") {
		t.Errorf("the connection was not dropped: %v", err)
	}
	return string(rest)
}

func TestTheServerHasBounds(t *testing.T) {
	c := newClient(t)
	server := c.api.Server()
	if server.ReadHeaderTimeout == 0 || server.ReadTimeout == 0 || server.IdleTimeout == 0 ||
		server.WriteTimeout <= c.api.cfg.Blocking || server.MaxHeaderBytes == 0 {
		t.Errorf("the server has no limits: %+v", server)
	}
}

func TestSlowClientsAreDropped(t *testing.T) {
	c := newClient(t)
	address := c.serve(func(s *http.Server) { s.ReadHeaderTimeout = 100 * time.Millisecond })
	dropped(t, c.dial(address, "GET /api/v1 HTTP/1.1\r\n"))
	address = c.serve(func(s *http.Server) { s.ReadTimeout = 3 * time.Second })
	if got := dropped(t, c.dial(address, c.head("PUT", "actions/a", 1000)+
		"{")); !strings.HasPrefix(got, "HTTP/1.1 400 ") {
		t.Errorf("a body that never came: %.100q", got)
	}
	if got := dropped(t, c.dial(address, c.head("PUT", "actions/a", 2<<20)+
		strings.Repeat(" ", 1<<20+100))); !strings.HasPrefix(got, "HTTP/1.1 400 ") {
		t.Errorf("a large body that never came: %.100q", got)
	}
	if n := c.api.bodies.Used(); n != 0 {
		t.Errorf("%d bytes are not given back", n)
	}
}

func TestAHundredMegabytesAreRefusedUnread(t *testing.T) {
	c := newClient(t)
	address := c.serve(func(*http.Server) {})
	for _, call := range [][2]string{{"PUT", "actions/a"}, {"POST", "actions/a"},
		{"PUT", "packages/a"}, {"POST", "triggers/a"}} {
		if call[0] == "POST" {
			c.do("PUT", call[1], hello)
		}
		conn := c.dial(address, c.head(call[0], call[1], 100<<20))
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || answer.StatusCode != 413 {
			t.Errorf("%s: %v, %v", call, answer, err)
		}
	}
	// One that does not say how much is coming is read up to the limit.
	conn := c.dial(address, strings.Replace(c.head("POST", "actions/a", 0), "Content-Length: 0",
		"Transfer-Encoding: chunked", 1))
	go func() {
		chunk := fmt.Sprintf("%x\r\n%s\r\n", 1<<16, strings.Repeat(" ", 1<<16))
		for range 1600 {
			if _, err := io.WriteString(conn, chunk); err != nil {
				return
			}
		}
	}()
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || answer.StatusCode != 413 {
		t.Errorf("chunked: %v, %v", answer, err)
	}
}

// A caller that closes its sending side, or goes away in the middle of its request, is no longer
// under way.
func TestHalfClosedConnections(t *testing.T) {
	c := newClient(t)
	c.put("hello")
	address := c.serve(func(*http.Server) {})
	conn := c.dial(address, c.head("POST", "actions/hello?blocking=true&result=true", 7)+`{"a":1}`)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	dropped(t, conn)
	conn = c.dial(address, c.head("POST", "actions/hello?blocking=true", 1000)+`{"a":`)
	conn.Close()
	owner, err := c.api.directory.Owner("guest")
	if err != nil {
		t.Fatal(err)
	}
	for owner.UnderWay() > 0 { // a caller that has gone away must not count for ever
		runtime.Gosched()
	}
}

// presented is the certificate that a client sees now.
func presented(t *testing.T, c *Certificate) string {
	t.Helper()
	now, err := c.Get(nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(now.Certificate[0])
}

func TestARenewedCertificateIsShown(t *testing.T) {
	dir := t.TempDir()
	c, err := LoadCertificate("", "", dir, "127.0.0.1:3443")
	if err != nil {
		t.Fatal(err)
	}
	first := presented(t, c)
	if err := signOneself(c.certFile, c.keyFile, "127.0.0.1:3443", time.Now()); err != nil {
		t.Fatal(err)
	}
	renewed := presented(t, c)
	if renewed == first {
		t.Error("the former one is shown")
	}
	if err := os.WriteFile(c.keyFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if presented(t, c) != renewed {
		t.Error("while its files are replaced, another one is shown")
	}
}

func TestACertificateOfOnesOwn(t *testing.T) {
	dir := t.TempDir()
	first, err := LoadCertificate("", "", dir, "127.0.0.1:3443")
	if err != nil {
		t.Fatal(err)
	}
	again, err := LoadCertificate("", "", dir, "127.0.0.1:3443")
	if err != nil || presented(t, again) != presented(t, first) {
		t.Errorf("another one at the second start: %v", err)
	}
	if info, err := os.Stat(filepath.Join(dir, "tls-key.pem")); err != nil ||
		info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info, err)
	}
	if _, err := LoadCertificate("cert", "", dir, ""); err == nil ||
		!strings.Contains(err.Error(), "both") {
		t.Errorf("a certificate without a key: %v", err)
	}
	if _, err := LoadCertificate("/nonexistent", "/nonexistent", dir, ""); err == nil {
		t.Error("a certificate that is not there was taken")
	}

	c := newClient(t)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: first.Get})
	if err != nil {
		t.Fatal(err)
	}
	server := c.api.Server()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() { server.Close(); <-served }()
	trusted := x509.NewCertPool()
	leaf, err := x509.ParseCertificate([]byte(presented(t, first)))
	if err != nil {
		t.Fatal(err)
	}
	trusted.AddCert(leaf)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("https://" + listener.Addr().String() +
		"/api/v1")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("HTTP %d", resp.StatusCode)
	}
}

// A request of HTTP/2 that is too large ends without its connection, which others use.
func TestALargeRequestEndsAlone(t *testing.T) {
	c := newClient(t)
	server := httptest.NewUnstartedServer(c.api)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	for n, size := range []int{100 << 20, 2} {
		var reused bool
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			GotConn: func(got httptrace.GotConnInfo) { reused = got.Reused }})
		r, err := http.NewRequestWithContext(ctx, http.MethodPut,
			server.URL+"/api/v1/namespaces/_/actions/a",
			strings.NewReader(strings.Repeat(" ", size)))
		if err != nil {
			t.Fatal(err)
		}
		r.SetBasicAuth(c.key.UUID, c.key.Secret)
		answer, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if answer.ProtoMajor != 2 || reused != (n > 0) || (n == 0) != (answer.StatusCode == 413) {
			t.Errorf("%d bytes: %s by %s, the former connection %v", size, answer.Status,
				answer.Proto, reused)
		}
	}
}
