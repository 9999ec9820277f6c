package knative

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
)

// public returns the keys that an issuer shows to whoever asks, by OpenID's discovery.
func (h *house) public() (set jose.JSONWebKeySet) {
	h.t.Helper()
	var about struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	get := func(path string, into any) {
		w := httptest.NewRecorder()
		h.http.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "https://localhost:80"+path, nil))
		if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
			h.t.Fatalf("GET %s is answered %d %q", path, w.Code, w.Body)
		}
	}
	get("/.well-known/openid-configuration", &about)
	path, its := strings.CutPrefix(about.Keys, about.Issuer)
	if !its {
		h.t.Fatalf("the keys of %s are at %s", about.Issuer, about.Keys)
	}
	get(path, &set)
	return set
}

// A program gets a token of its service account, which the keys that are shown prove, also after a
// restart. It says for whom it is, where it counts and when it ends.
func TestATokenIsProvedByWhatIsShown(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", objects+"services", `{"metadata":{"name":"hello"},"spec":{"template":{"spec":{
		"serviceAccountName":"baker",
		"containers":[{"image":"example.com/hello","volumeMounts":[
			{"name":"t","mountPath":"/tokens","readOnly":true}]}],
		"volumes":[{"name":"t","projected":{"defaultMode":256,"sources":[
			{"serviceAccountToken":{"audience":"bank","expirationSeconds":900,"path":"a/b"}},
			{"serviceAccountToken":{"path":"c"}}]}}]}}}}`)
	h.ready("hello", "True")
	files := h.started("hello-00001").Mounts[0].Files
	if len(files) != 2 || files[0].Name != "a/b" || files[0].Mode != 0o400 ||
		files[1].Name != "c" {
		t.Fatalf("its files are %v", files)
	}
	for i, want := range []struct {
		audience string
		life     time.Duration
	}{{"bank", 15 * time.Minute}, {"https://localhost:80", time.Hour}} {
		token, err := jwt.ParseSigned(string(files[i].Data), []jose.SignatureAlgorithm{jose.ES256})
		if err != nil {
			t.Fatal(err)
		}
		var said claims
		if err := token.Claims(h.public(), &said); err != nil {
			t.Fatal(err)
		}
		now := said.IssuedAt.Time()
		expected := jwt.Expected{Issuer: "https://localhost:80", Time: now,
			Subject: "system:serviceaccount:ann:baker"}
		if err := said.ValidateWithLeeway(expected, 0); err != nil {
			t.Errorf("%+v: %v", said, err)
		}
		_, rest, _ := strings.Cut(string(files[i].Data), ".")
		payload, _, _ := strings.Cut(rest, ".")
		raw, err := base64.RawURLEncoding.DecodeString(payload)
		if err != nil || !strings.Contains(string(raw), `"aud":["`+want.audience+`"]`) {
			t.Errorf("its claims are %s, %v", raw, err)
		}
		if age := time.Since(now); age < -time.Second || age > time.Minute {
			t.Errorf("it was signed %s ago", age)
		}
		if life := said.Expiry.Time().Sub(now); life != want.life {
			t.Errorf("it lives for %s, want %s", life, want.life)
		}
		if said.Kubernetes.Namespace != "ann" || said.Kubernetes.Account.Name != "baker" {
			t.Errorf("it is of %+v", said.Kubernetes)
		}
	}
	code, _ := h.ask("GET", objects+"services", "", "")
	if code != http.StatusOK {
		t.Fatalf("ann's key is answered %d", code)
	}
	r := httptest.NewRequest("GET", "http://127.0.0.1"+objects+"services", nil)
	r.Header.Set("Authorization", "Bearer "+string(files[0].Data))
	w := httptest.NewRecorder()
	h.http.ServeHTTP(w, r)
	if w.Code != http.StatusUnauthorized {
		t.Errorf("the API answers a program's token with %d", w.Code)
	}
}

// A life that Kubernetes would not give a token fails its revision, which says so.
func TestATokensLifeIsBounded(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	for name, life := range map[string]string{"brief": "599", "long": "9223372036854775807"} {
		h.must("POST", objects+"services", `{"metadata":{"name":"`+name+`"},"spec":{"template":{
			"spec":{"containers":[{"image":"example.com/hello","volumeMounts":[
				{"name":"t","mountPath":"/tokens","readOnly":true}]}],
			"volumes":[{"name":"t","projected":{"sources":[{"serviceAccountToken":{
				"path":"a","expirationSeconds":`+life+`}}]}}]}}}}`)
		h.ready(name, "False")
		if said := h.must("GET", objects+"revisions/"+name+"-00001", ""); !strings.Contains(said,
			life+" s; give it 600 to") {
			t.Errorf("its revision is %s", said)
		}
	}
}

// proves checks that keys prove a token.
func proves(t *testing.T, keys jose.JSONWebKeySet, token string) {
	t.Helper()
	signed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		t.Fatal(err)
	}
	if err := signed.Claims(keys, &claims{}); err != nil {
		t.Error(err)
	}
}

// Keys outlive the process. A new one signs, and what former ones have signed is proved still. A
// file that others may read, or without a key, is refused.
func TestKeysAreKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state", "tokens.key")
	load := func() *Issuer {
		t.Helper()
		i, err := LoadIssuer(file, "https://here")
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	first := load()
	sign := func(i *Issuer) string {
		token, err := i.sign("ann", "", &corev1.ServiceAccountTokenProjection{}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	before := sign(first)
	former, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if again := load(); len(again.public.Keys) != 1 ||
		again.public.Keys[0].KeyID != first.public.Keys[0].KeyID {
		t.Errorf("the keys are %v, want %v", again.public, first.public)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	newer := load().public.Keys[0].KeyID
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(text, former...), 0o600); err != nil {
		t.Fatal(err)
	}
	both := load()
	if n := len(both.public.Keys); n != 2 || both.public.Keys[0].KeyID != newer ||
		both.public.Keys[1].KeyID != first.public.Keys[0].KeyID {
		t.Errorf("the keys are %v", both.public)
	}
	proves(t, both.public, before)
	after := sign(both)
	proves(t, both.public, after)
	if head, _ := jwt.ParseSigned(after, []jose.SignatureAlgorithm{jose.ES256}); head == nil ||
		head.Headers[0].KeyID != newer {
		t.Errorf("the key that signs is not the first of the file: %+v", head)
	}
	whole := string(text)
	for text, says := range map[string]string{"nothing": "holds no key",
		whole + "-----BEGIN PRIVATE KEY-----\nAAAA\n":                    "not whole",
		"-----BEGIN PRIVATE KEY-----\nAAAA\n" + whole:                    "not whole",
		"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n": "no private key"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadIssuer(file, ""); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadIssuer(file, ""); err == nil ||
		!strings.Contains(err.Error(), "read by others") {
		t.Errorf("%v", err)
	}
}
