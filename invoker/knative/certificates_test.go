package knative

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fastiov/fastiov/invoker/access"
)

// certified returns a certificate for some names that signs itself, and its key, both PEM.
func certified(t *testing.T, names ...string) (chain, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signed(t, private, names...)
}

func signed(t *testing.T, private crypto.Signer, names ...string) (chain, key []byte) {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()),
		DNSNames: names, NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true}
	own, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(),
		private)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func tlsSecret(name string, chain, key []byte) string {
	s := corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{
		corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key}}
	s.Name = name
	text, _ := json.Marshal(s)
	return string(text)
}

func securedBy(of, secret string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"tls":{"secretName":%q},"ref":{
		"kind":"Service","apiVersion":"serving.knative.dev/v1","name":"hello"}}}`, of, secret)
}

// A door is a listener by HTTPS of a house, whose own certificate is for door.test.
type door struct {
	t        *testing.T
	address  string
	own, key []byte
}

func (h *house) door() (d *door, leave func()) {
	h.t.Helper()
	own, key := certified(h.t, "door.test")
	pair, err := tls.X509KeyPair(own, key)
	if err != nil {
		h.t.Fatal(err)
	}
	secured := &tls.Config{NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }}
	h.api.Secure(secured)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	server := &http.Server{Handler: h.http}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = server.Serve(tls.NewListener(listener, secured))
	}()
	return &door{h.t, listener.Addr().String(), own, key}, func() {
		server.Close()
		<-over
	}
}

// client returns a client of one version of HTTP that goes to the door whatever the host is, and
// verifies what it is shown by what it trusts. kept: the sessions that it resumes, or nil.
func (d *door) client(trusted []byte, version int, kept tls.ClientSessionCache) *http.Transport {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	speaks := &http.Protocols{}
	speaks.SetHTTP1(version == 1)
	speaks.SetHTTP2(version == 2)
	return &http.Transport{Protocols: speaks,
		TLSClientConfig: &tls.Config{RootCAs: roots, ClientSessionCache: kept},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, d.address)
		}}
}

// get asks for a page of a host as a client that trusts one certificate.
func (d *door) get(host string, trusted []byte, version int, kept tls.ClientSessionCache) (
	said string, err error) {
	d.t.Helper()
	transport := d.client(trusted, version, kept)
	transport.DisableKeepAlives = true
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Get(
		"https://" + host + "/x")
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if answer.ProtoMajor != version || answer.TLS.DidResume {
		d.t.Errorf("%s: %s, resumed %v", host, answer.Proto, answer.TLS.DidResume)
	}
	return string(body), err
}

// shows checks that a client which asks for a name is shown a certificate, and whom it reaches.
func (d *door) shows(name string, want []byte, what string) {
	d.t.Helper()
	conn, err := tls.Dial("tcp", d.address, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err != nil {
		d.t.Fatal(err)
	}
	defer conn.Close()
	block, _ := pem.Decode(want)
	if got := conn.ConnectionState().PeerCertificates[0].Raw; string(got) != string(block.Bytes) {
		d.t.Errorf("%s: who asks for %q is shown another certificate", what, name)
	}
}

// A mapped name is shown by the certificate of its Secret, as that is now.
func TestAMappedNameHasItsCertificate(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	d, shut := h.door()
	defer shut()
	const of = "hello.example.com"
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	h.ready("hello", "True")
	h.must("POST", mappings, securedBy(of, "s"))
	h.says(of, "CertificateProvisioned", "False", `"reason":"CertificateProvisionFailed"`)
	h.says(of, "Ready", "False", `failed to be provisioned. secret \"s\" not found`)
	d.shows(of, d.own, "before there is a Secret")
	if code, _ := h.curl(of, "/"); code != 404 {
		t.Errorf("before there is a Secret: %d", code)
	}
	chain, key := certified(t, of)
	h.must("POST", core+"secrets", tlsSecret("s", chain, key))
	d.shows(of, chain, "as soon as there is one")
	h.says(of, "Ready", "True", `"url":"https://hello.example.com:80"`)
	h.says(of, "CertificateProvisioned", "True", `"reason":"CertificateExternallyProvided"`)
	kept := tls.NewLRUClientSessionCache(8)
	for version := 1; version <= 2; version++ {
		if said, err := d.get(of, chain, version, kept); said != "/x hello-00001 9000 b" {
			t.Errorf("by HTTP/%d: %q %v", version, said, err)
		}
	}
	if code, said := h.curl(of, "/x"); code != 200 {
		t.Errorf("without TLS: %d %q", code, said)
	}
	d.shows("HELLO.example.com", chain, "in capitals")
	for _, other := range []string{"", "other.example.com", "x." + of, "example.com",
		"hello.ann.localhost", "door.test"} {
		d.shows(other, d.own, "another name")
	}
	next, key := certified(t, of)
	h.must("PATCH", core+"secrets/s", tlsSecret("s", next, key))
	d.shows(of, next, "once the Secret is another")
	if said, err := d.get(of, chain, 1, kept); err == nil {
		t.Errorf("who trusts the former certificate alone is answered %q", said)
	}
	if said, err := d.get(of, next, 1, kept); said != "/x hello-00001 9000 b" {
		t.Errorf("with the next certificate: %q %v", said, err)
	}
	_, foreign := certified(t, of)
	h.must("PATCH", core+"secrets/s", tlsSecret("s", next, foreign))
	h.says(of, "Ready", "False", "has no key pair in")
	d.shows(of, d.own, "with a key of another")
	h.must("PATCH", core+"secrets/s", tlsSecret("s", next, key))
	h.says(of, "Ready", "True", "")
	h.must("DELETE", core+"secrets/s", "")
	d.shows(of, d.own, "once the Secret is gone")
	h.says(of, "Ready", "False", "not found")
	h.must("PATCH", mappings+"/"+of, `{"spec":{"tls":null}}`)
	h.says(of, "CertificateProvisioned", "True", "TLSNotEnabled")
	h.says(of, "Ready", "True", `"url":"http://hello.example.com"`)
}

// What a Secret has is shown for a name of its namespace's alone, and no longer than it has that.
func TestACertificateIsForItsOwnersNames(t *testing.T) {
	path, userKey := t.TempDir()+"/store", access.NewKey()
	h, leave := newHouse(t, path, userKey)
	d, shut := h.door()
	const hers, his = "hers.example.com", "his.example.com"
	chain, key := certified(t, hers, his)
	h.must("POST", core+"secrets", tlsSecret("s", chain, key))
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	h.ready("hello", "True")
	h.api.road.domains.claim("bob", his)
	h.must("POST", mappings, securedBy(his, "s"))
	h.says(his, "DomainClaimed", "False", "DomainAlreadyClaimed")
	d.shows(his, d.own, "a name of bob's")
	h.must("POST", mappings, securedBy("api.example.org", "s"))
	h.says("api.example.org", "DomainClaimed", "False", "")
	d.shows("api.example.org", d.own, "a name that is not open")
	h.must("POST", mappings, securedBy(hers, "s"))
	h.says(hers, "Ready", "True", "")
	d.shows(hers, chain, "her name")
	shut()
	leave()

	h, leave = newHouse(t, path, userKey)
	defer leave()
	if h.api.road.domains.certificate(hers) == nil {
		t.Error("a process that begins does not show her certificate at once")
	}
	d, shut = h.door()
	defer shut()
	d.shows(hers, chain, "after a restart")
	h.must("DELETE", mappings+"/"+hers, "")
	h.until("the name is nobody's", func() bool { return !h.api.road.owns(hers) })
	d.shows(hers, d.own, "a name that she gave up")
	h.until("he gets it", func() bool { return h.api.road.domains.claim("bob", hers) })
	d.shows(hers, d.own, "a name that is bob's now")
}

// A connection that was made for one certificate is not for a host of another. Its client is told
// so, may go on with it, and reaches that host by a connection of its own.
func TestAConnectionIsForItsCertificatesHosts(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	d, shut := h.door()
	defer shut()
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	h.ready("hello", "True")
	const one, same, wild, plain = "one.example.com", "same.example.com", "wild.example.com",
		"plain.example.com"
	both, itsKey := certified(t, one, same, wild)
	other, otherKey := certified(t, "*.example.com")
	h.must("POST", core+"secrets", tlsSecret("both", both, itsKey))
	h.must("POST", core+"secrets", tlsSecret("copy", both, itsKey))
	h.must("POST", core+"secrets", tlsSecret("other", other, otherKey))
	for of, secret := range map[string]string{one: "both", same: "copy", wild: "other"} {
		h.must("POST", mappings, securedBy(of, secret))
		h.says(of, "Ready", "True", "")
	}
	h.must("POST", mappings, mappingOf(plain, "Service", "serving.knative.dev/v1", "hello"))
	h.says(plain, "Ready", "True", "")
	const service = "hello.ann.localhost"
	trusted := slices.Concat(both, other, d.own)
	for version := 1; version <= 2; version++ {
		for _, c := range []struct {
			madeFor, host string
			want          int
		}{
			{one, one, 200}, {one, "ONE.example.com.:443", 200}, {one, same, 200},
			{one, wild, 421}, {wild, one, 421}, {wild, wild + ":1", 200},
			{"door.test", one, 421}, {"door.test", service, 200}, {"door.test", plain, 200},
			{one, service, 200}, {wild, plain, 200}, {"127.0.0.1", one, 200},
		} {
			client := d.client(trusted, version, nil)
			client.TLSClientConfig.InsecureSkipVerify = c.madeFor == "127.0.0.1" // it sends no name
			what := fmt.Sprintf("HTTP/%d, %s by a connection for %s", version, c.host, c.madeFor)
			ask := func(url, host string) (code int, again bool) {
				return h.over(client, version, url, host)
			}
			if code, _ := ask(c.madeFor, c.host); code != c.want {
				t.Errorf("%s: %d", what, code)
			}
			if c.want == 421 {
				if code, again := ask(c.madeFor, service); code != 200 || !again {
					t.Errorf("%s: then another by it: %d, by the same %v", what, code, again)
				}
				if code, again := ask(c.host, c.host); code != 200 || again {
					t.Errorf("%s: by its own: %d, by the same %v", what, code, again)
				}
			}
			client.CloseIdleConnections()
		}
	}
	if code, said := h.curl(one, "/x"); code != 200 {
		t.Errorf("without TLS: %d %q", code, said)
	}
	h.must("PATCH", core+"secrets/other", tlsSecret("other", d.own, d.key))
	client := d.client(trusted, 2, nil)
	defer client.CloseIdleConnections()
	if code, _ := h.over(client, 2, "door.test", wild); code != 200 {
		t.Errorf("a host of the listener's certificate: %d", code)
	}
}

// over asks for a page of a host by a connection for a name. again: it was there.
func (h *house) over(client *http.Transport, version int, madeFor, host string) (
	code int, again bool) {
	h.t.Helper()
	ctx := httptrace.WithClientTrace(h.t.Context(), &httptrace.ClientTrace{
		GotConn: func(got httptrace.GotConnInfo) { again = got.Reused }})
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+madeFor+"/x", nil)
	if err != nil {
		h.t.Fatal(err)
	}
	r.Host = host
	answer, err := client.RoundTrip(r)
	if err != nil {
		h.t.Fatal(err)
	}
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	if err != nil || answer.ProtoMajor != version ||
		answer.StatusCode == 200 && string(said) != "/x hello-00001 9000 b" {
		h.t.Errorf("%s by a connection for %s: %s %q %v", host, madeFor, answer.Proto, said, err)
	}
	return answer.StatusCode, again
}

// A key that would cost everybody who connects too much is refused.
func TestAKeyPairHasBounds(t *testing.T) {
	chain, key := certified(t, "hello.example.com")
	//lint:ignore SA1019 one of two primes would take ten seconds to make
	private, err := rsa.GenerateMultiPrimeKey(rand.Reader, 8, mostBits+8)
	if err != nil {
		t.Fatal(err)
	}
	manyBits, itsKey := signed(t, private, "hello.example.com")
	//lint:ignore SA1019 it is what is refused
	private, err = rsa.GenerateMultiPrimeKey(rand.Reader, 3, 2048)
	if err != nil {
		t.Fatal(err)
	}
	manyPrimes, theirKey := signed(t, private, "hello.example.com")
	short, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	unusual, unusualKey := signed(t, short, "hello.example.com")
	much := pem.EncodeToMemory(&pem.Block{Type: "OTHER", Bytes: make([]byte, mostChain)})
	for want, data := range map[string][2][]byte{
		"":                               {chain, key},
		"too large: tls.crt may have 64": {slices.Concat(much, chain), key},
		"and tls.key 8 KiB":              {chain, slices.Concat(much[:mostKey], key)},
		"has no key pair":                {key, chain},
		"of 4104 bits, and may have":     {manyBits, itsKey},
		"of 3 primes, and may have 2":    {manyPrimes, theirKey},
		"that no client takes":           {unusual, unusualKey},
	} {
		_, err := pairOf(&corev1.Secret{Data: map[string][]byte{
			corev1.TLSCertKey: data[0], corev1.TLSPrivateKeyKey: data[1]}})()
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
