package command

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk"
)

// A request at the address of both says by which of the two it came.
func TestARequestKnowsItsTLS(t *testing.T) {
	certificate, err := openwhisk.LoadCertificate("", "", t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS != nil {
			_, _ = io.WriteString(w, "TLS")
		}
	})}
	tellTLS(server)
	takeHTTP2(server)
	secured := securedBy(certificate)
	go server.Serve(either{listener, secured})
	alone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(tls.NewListener(alone, secured))
	defer server.Close()
	for _, c := range []struct {
		scheme  string
		at      net.Listener
		version int
		want    string
	}{
		{"http", listener, 1, ""}, {"http", listener, 2, ""},
		{"https", listener, 1, "TLS"}, {"https", listener, 2, "TLS"},
		{"https", alone, 1, "TLS"}, {"https", alone, 2, "TLS"},
	} {
		speaks := &http.Protocols{}
		speaks.SetHTTP1(c.version == 1)
		speaks.SetHTTP2(c.version == 2)
		speaks.SetUnencryptedHTTP2(c.version == 2)
		transport := &http.Transport{Protocols: speaks,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		answer, err := (&http.Client{Transport: transport}).Get(c.scheme + "://" +
			c.at.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		said, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		transport.CloseIdleConnections()
		if err != nil || string(said) != c.want || answer.ProtoMajor != c.version {
			t.Errorf("%s by HTTP/%d: %q by %s, %v", c.scheme, c.version, said, answer.Proto, err)
		}
	}
}

// Requests whose bodies nobody reads yet hold up no other of their connection.
func TestBodiesThatWaitHoldUpNoOther(t *testing.T) {
	read := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/waits" {
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				<-read
			}
			n, err := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, n, err)
		}))
	takeHTTP2(server.Config)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	goOn := sync.OnceFunc(func() { close(read) })
	defer goOn() // or the server waits for its handlers
	client := server.Client()
	client.Timeout = time.Minute
	const long = 2 << 20
	var answers []*http.Response
	for _, path := range []string{"/waits", "/waits", "/waits", "/"} {
		answer, err := client.Post(server.URL+path, "", bytes.NewReader(make([]byte, long)))
		if err != nil {
			t.Fatal(path, err)
		}
		defer answer.Body.Close()
		answers = append(answers, answer)
	}
	goOn()
	for _, answer := range answers {
		said, err := io.ReadAll(answer.Body)
		if want := fmt.Sprint(long, error(nil)); string(said) != want || answer.ProtoMajor != 2 {
			t.Errorf("%q by %s, %v", said, answer.Proto, err)
		}
	}
}
