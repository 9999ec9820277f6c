package knative

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	node "github.com/fastiov/fastiov/node-agent/api"
)

const core = "/api/v1/namespaces/ann/"

func secretOf(name, key, value string) string {
	return fmt.Sprintf(`{"kind":"Secret","apiVersion":"v1","metadata":{"name":%q},"data":{%q:%q}}`,
		name, key, base64.StdEncoding.EncodeToString([]byte(value)))
}

// started returns what the sandbox of a service's revision was started with.
func (h *house) started(revision string) *node.StartRequest {
	h.t.Helper()
	h.node.mu.Lock()
	defer h.node.mu.Unlock()
	for _, s := range h.node.live {
		if s.Env["K_REVISION"] == revision {
			return s
		}
	}
	h.t.Fatalf("no sandbox of %s runs", revision)
	return nil
}

// A container gets variables and files of Secrets and ConfigMaps, by Kubernetes's rules.
func TestWhatAContainerIsGiven(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", core+"secrets", secretOf("s", "token", "hush"))
	h.must("POST", core+"configmaps", `{"metadata":{"name":"c"},
		"data":{"A":"of c","B":"b of c","app.conf":"x=1"},"binaryData":{"raw":"AAE="}}`)
	h.must("POST", objects+"services", `{"metadata":{"name":"hello"},"spec":{"template":{"spec":{
		"containers":[{"image":"example.com/hello","command":["run","$(TOKEN)"],
			"args":["$$(A)","$(NONE)","-$(C_A)-"],
			"envFrom":[{"prefix":"C_","configMapRef":{"name":"c"}},
				{"secretRef":{"name":"none","optional":true}}],
			"env":[{"name":"TOKEN","valueFrom":{"secretKeyRef":{"name":"s","key":"token"}}},
				{"name":"C_B","value":"own"},{"name":"ALL","value":"$(TOKEN) and $(C_A)"},
				{"name":"NO","valueFrom":{"configMapKeyRef":{
					"name":"c","key":"none","optional":true}}}],
			"volumeMounts":[{"name":"s","mountPath":"/etc/s","readOnly":true},
				{"name":"c","mountPath":"/etc/app.conf","subPath":"deep/app","readOnly":true},
				{"name":"both","mountPath":"/both/","readOnly":true}]}],
		"volumes":[{"name":"s","secret":{"secretName":"s","defaultMode":256}},
			{"name":"c","configMap":{"name":"c","items":[{"key":"app.conf","path":"deep/app"}]}},
			{"name":"both","projected":{"sources":[{"secret":{"name":"s"}},
				{"configMap":{"name":"c","items":[{"key":"raw","path":"raw","mode":292}]}}]}}]
	}}}}`)
	h.ready("hello", "True")
	s := h.started("hello-00001")
	for name, want := range map[string]string{"TOKEN": "hush", "C_A": "of c", "C_B": "own",
		"C_app.conf": "x=1", "ALL": "hush and of c"} {
		if s.Env[name] != want {
			t.Errorf("%s is %q, want %q", name, s.Env[name], want)
		}
	}
	if _, has := s.Env["NO"]; has {
		t.Error("a variable without a source is there")
	}
	words := slices.Concat(s.Command, s.Args)
	if want := []string{"run", "hush", "$(A)", "$(NONE)", "-of c-"}; !slices.Equal(words, want) {
		t.Errorf("its command is %q, want %q", words, want)
	}
	var got []string
	for _, m := range s.Mounts {
		for _, f := range m.Files {
			got = append(got, fmt.Sprintf("%s:%s:%o:%q", m.Path, f.Name, f.Mode, f.Data))
		}
	}
	want := []string{`/both:raw:444:"\x00\x01"`, `/both:token:644:"hush"`,
		`/etc/app.conf::644:"x=1"`, `/etc/s:token:400:"hush"`}
	if !slices.Equal(got, want) {
		t.Errorf("its files are %q, want %q", got, want)
	}
}

// A revision waits for a Secret, says so, and starts once it is there.
func TestARevisionWaitsForASecret(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", objects+"services", strings.Replace(described("hello", "example.com/hello"),
		`{"name":"A","value":"b"}`,
		`{"name":"A","valueFrom":{"secretKeyRef":{"name":"late","key":"k"}}}`, 1))
	h.ready("hello", "False")
	if of := h.must("GET", objects+"revisions/hello-00001", ""); !strings.Contains(of,
		`"reason":"CreateContainerConfigError","message":"secret \"late\" not found"`) {
		t.Errorf("its revision says %s", of)
	}
	h.must("POST", core+"secrets", secretOf("late", "other", "x"))
	h.until("the key is missed", func() bool {
		return strings.Contains(h.must("GET", objects+"revisions/hello-00001", ""),
			"couldn't find key k in Secret ann/late")
	})
	h.must("PATCH", core+"secrets/late", `{"stringData":{"k":"hush"}}`)
	h.ready("hello", "True")
	if code, said := h.curl("hello.ann.localhost", "/x"); code != 200 ||
		!strings.HasSuffix(said, " hush") {
		t.Errorf("%d %q", code, said)
	}
	if n := h.node.starts.Load(); n != 1 {
		t.Errorf("%d starts, want one", n)
	}
}

// A revision that is to get what is not served here says so.
func TestWhatIsNotGiven(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	for name, spec := range map[string]string{
		"token": `"volumes":[{"name":"v","projected":{"sources":[
			{"serviceAccountToken":{"path":"token"}}]}}]`,
		"up": `"volumes":[{"name":"v","secret":{"secretName":"s",
			"items":[{"key":"k","path":"../../etc/passwd"}]}}]`,
	} {
		h.must("POST", objects+"services", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"template":{
			"spec":{"containers":[{"image":"example.com/hello","volumeMounts":[
				{"name":"v","mountPath":"/v","readOnly":true}]}],%s}}}}`, name, spec))
		h.ready(name, "False")
		if of := h.must("GET", objects+"revisions/"+name+"-00001", ""); !strings.Contains(of,
			`"reason":"NotServedHere","message":"the volume v `) {
			t.Errorf("%s says %s", name, of)
		}
	}
}

// Secrets and ConfigMaps are kept as Kubernetes keeps them, and no answer but the object itself has
// a value.
func TestSecretsAndConfigMaps(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	const hush = "hush-hush"
	made := h.must("POST", core+"secrets",
		`{"metadata":{"name":"s"},"stringData":{"a":"`+hush+`"},"data":{"b":"eA=="}}`)
	var s struct {
		Type string
		Data map[string][]byte
	}
	if err := json.Unmarshal([]byte(made), &s); err != nil || s.Type != "Opaque" ||
		string(s.Data["a"]) != hush || string(s.Data["b"]) != "x" ||
		strings.Contains(made, "stringData") || strings.Contains(made, "generation") {
		t.Errorf("it is %s, %v", made, err)
	}
	var b bytes.Buffer
	err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(&corev1.Secret{
		TypeMeta:   metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "p"}, Data: map[string][]byte{"k": []byte(hush)}}, &b)
	if err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("x", 1<<20)
	for _, c := range []struct {
		method, path, form, body string
		code                     int
		want                     string
	}{
		{"POST", "secrets", runtime.ContentTypeProtobuf, b.String(), 201, "aHVzaC1odXNo"},
		{"POST", "secrets", runtime.ContentTypeProtobuf, "{}", 400, "protobuf"},
		{"POST", "secrets", "", `{"metadata":{"name":"s2"},"data":{"no/key":""}}`, 422, "no/key"},
		{"POST", "secrets", "", `{"metadata":{"name":"s2"},"stringData":{"a":"` + hush + large +
			`"}}`, 422, "Too long"},
		{"POST", "secrets", "", `{"metadata":{"name":"S_2"}}`, 422, "RFC 1123"},
		{"POST", "secrets", "", `{"metadata":{"name":"t"},"type":"kubernetes.io/tls",
			"stringData":{"tls.crt":"` + hush + `"}}`, 422, "tls.key"},
		{"POST", "secrets", "", `{"metadata":{"name":"d"},"stringData":{
			".dockerconfigjson":"` + hush + `"},"type":"kubernetes.io/dockerconfigjson"}`, 422,
			"redacted"},
		{"POST", "secrets", "", `{"metadata":{"name":"s"}}`, 409, "already exists"},
		{"PUT", "secrets/s", "", `{"metadata":{"name":"s"},"type":"other"}`, 422, "immutable"},
		{"PATCH", "secrets/s", "application/merge-patch+json", `{"data":{"a":"` + hush + `"}}`, 400,
			"illegal base64"},
		{"PATCH", "secrets/s", "application/strategic-merge-patch+json",
			`{"data":{"b":null},"metadata":{"labels":{"l":"v"}}}`, 200, `"l":"v"`},
		{"PATCH", "secrets/s", "application/merge-patch+json", `{"immutable":true}`, 200, ""},
		{"PATCH", "secrets/s", "application/merge-patch+json", `{"stringData":{"a":"x"}}`, 422,
			"immutable"},
		{"PATCH", "secrets/s", "application/merge-patch+json", `{"immutable":false}`, 422,
			"immutable"},
		{"POST", "configmaps", "", `{"metadata":{"name":"c"},"data":{"a":"1"},
			"binaryData":{"a":"AA=="}}`, 422, "duplicate"},
		{"POST", "configmaps", "", `{"metadata":{"name":"c"},"data":{"a":"1"}}`, 201, ""},
		{"DELETE", "configmaps/c", "", "", 200, "Success"},
		{"GET", "configmaps/c", "", "", 404, "not found"},
	} {
		code, answer := h.ask(c.method, core+c.path, c.form, c.body)
		if code != c.code || !strings.Contains(answer, c.want) {
			t.Errorf("%s %s %.80s: %d %.300s; want %d and %q", c.method, c.path, c.body, code,
				answer, c.code, c.want)
		}
		if code >= 300 && strings.Contains(answer, hush) {
			t.Errorf("%s %s tells the value: %.300s", c.method, c.path, answer)
		}
	}
	if list := h.must("GET", core+"secrets", ""); !strings.Contains(list, `"kind":"SecretList"`) {
		t.Errorf("the list is %s", list)
	}
	if table := h.table(core + "secrets"); !strings.Contains(table, `["s","Opaque",1,`) ||
		strings.Contains(table, hush) {
		t.Errorf("the table is %s", table)
	}
}

// table returns the cells that kubectl would print.
func (h *house) table(path string) string {
	h.t.Helper()
	r, w := h.request(http.MethodGet, path, "")
	r.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
	h.http.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		h.t.Fatalf("%s is answered %d %s", path, w.Code, w.Body)
	}
	return w.Body.String()
}
