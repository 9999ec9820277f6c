package command

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"

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
	go server.Serve(either{listener, &tls.Config{GetCertificate: certificate.Get}})
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for scheme, want := range map[string]string{"http": "", "https": "TLS"} {
		answer, err := client.Get(scheme + "://" + listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		said, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || string(said) != want {
			t.Errorf("%s: %q, %v", scheme, said, err)
		}
	}
}
