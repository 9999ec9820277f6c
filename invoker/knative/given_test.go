package knative

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/fastiov/fastiov/invoker/pool"
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
		"data":{"A":"of c","B":"b of c","app.conf":"x=1","PORT":"1"},"binaryData":{"raw":"AAE="}}`)
	h.must("POST", objects+"services", `{"metadata":{"name":"hello"},"spec":{"template":{"spec":{
		"containers":[{"image":"example.com/hello","command":["run","$(TOKEN)"],
			"args":["$$(A)","$(NONE)","-$(C_A)-"],
			"envFrom":[{"configMapRef":{"name":"c"}},{"prefix":"C_","configMapRef":{"name":"c"}},
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
		"C_app.conf": "x=1", "ALL": "hush and of c", "A": "of c", "PORT": "8080"} {
		if s.Env[name] != want {
			t.Errorf("%s is %q, want %q", name, s.Env[name], want)
		}
	}
	for _, name := range []string{"NO", "raw"} {
		if _, has := s.Env[name]; has {
			t.Errorf("%s is there, and has no text", name)
		}
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

// No revision has more put together for it than a program can be given: it fails, and says why.
func TestAProgramIsNotGivenTooMuch(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", core+"secrets", secretOf("big", "k", strings.Repeat("x", 500<<10)))
	h.must("POST", core+"secrets", secretOf("raw", "k", "\xff"))
	h.must("POST", core+"configmaps", fmt.Sprintf(`{"metadata":{"name":"text"},"data":{"k":%q}}`,
		strings.Repeat("x", 100<<10)))
	many := func(n int, each func(i int) string) string {
		var all []string
		for i := range n {
			all = append(all, each(i))
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	for name, of := range map[string]struct{ container, volumes, says string }{
		"names": {`"env":` + many(1001, func(i int) string {
			return fmt.Sprintf(`{"name":"E%d","value":"x"}`, i)
		}), "", "names 1001 variables"},
		"doubles": {`"env":` + many(60, func(i int) string {
			return fmt.Sprintf(`{"name":"E%d","value":"$(E%d)$(E%[2]d)x"}`, i, i-1)
		}), "", "becomes longer than 128 KiB"},
		"words": {`"env":[{"name":"E","value":"` + strings.Repeat("x", 1<<10) + `"}],"args":` +
			many(2000, func(int) string { return `"$(E)"` }), "", "over 1024 KiB in all"},
		"prefixes": {`"envFrom":` + many(1000, func(i int) string {
			return fmt.Sprintf(`{"prefix":"P%d_","configMapRef":{"name":"text"}}`, i)
		}), "", "over 1024 KiB in all"},
		"long": {`"envFrom":[{"secretRef":{"name":"big"}}]`, "", "over 128 KiB"},
		"raw":  {`"envFrom":[{"secretRef":{"name":"raw"}}]`, "", "has no text"},
		"mounts": {`"volumeMounts":` + many(100, func(i int) string {
			return fmt.Sprintf(`{"name":"v","mountPath":"/m/%d","readOnly":true}`, i)
		}), `,"volumes":[{"name":"v","secret":{"secretName":"big"}}]`, "over 4 MiB"},
		"deep": {`"volumeMounts":[{"name":"v","mountPath":"/m","readOnly":true}]`,
			`,"volumes":[{"name":"v","secret":{"secretName":"big","items":[{"key":"k","path":"` +
				strings.Repeat("a/", 5000) + `a"}]}}]`, "of at most 15 folders"},
	} {
		h.must("POST", objects+"services", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"template":{
			"spec":{"containers":[{"image":"example.com/hello",%s}]%s}}}}`,
			name, of.container, of.volumes))
		h.ready(name, "False")
		if got := h.must("GET", objects+"revisions/"+name+"-00001", ""); !strings.Contains(
			got, of.says) {
			t.Errorf("%s: it does not say %q: %.2000s", name, of.says, got[strings.Index(got,
				`"status"`):])
		}
	}
	if n := h.node.starts.Load(); n != 0 {
		t.Errorf("%d starts", n)
	}
}

// A revision waits for a Secret, says so, and starts once it is there, however late that is.
func TestARevisionWaitsForASecret(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", objects+"services", strings.NewReplacer(`{"name":"A","value":"b"}`,
		`{"name":"A","valueFrom":{"secretKeyRef":{"name":"late","key":"k"}}}`,
		`"template":{`, `"template":{"metadata":{"annotations":{
			"serving.knative.dev/progress-deadline":"1s"}},`,
	).Replace(described("hello", "example.com/hello")))
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
		"labels": `"volumes":[{"name":"v","projected":{"sources":[{"downwardAPI":{"items":[
			{"path":"labels","fieldRef":{"fieldPath":"metadata.labels"}}]}}]}}]`,
		"up": `"volumes":[{"name":"v","secret":{"secretName":"s",
			"items":[{"key":"k","path":"../../etc/passwd"}]}}]`,
		"many": `"volumes":[{"name":"v","configMap":{"name":"c","optional":true,"items":[` +
			strings.Repeat(`{"key":"a","path":"b"},`, mostParts) + `{"key":"a","path":"b"}]}}]`,
	} {
		h.must("POST", objects+"services", fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"template":{
			"spec":{"containers":[{"image":"example.com/hello","volumeMounts":[
				{"name":"v","mountPath":"/v","readOnly":true}]}],%s}}}}`, name, spec))
		h.ready(name, "False")
		if of := h.must("GET", objects+"revisions/"+name+"-00001", ""); !strings.Contains(of,
			`"reason":"NotServedHere","message":"the volume`) {
			t.Errorf("%s says %s", name, of)
		}
	}
}

// The world has a scale forgotten while it is locked. So no scale asks the world, as for a Secret,
// while scales are locked: each would wait for the other.
func TestTheWorldIsAskedBeforeScalesAreLocked(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", core+"secrets", secretOf("s", "k", "hush"))
	h.must("POST", objects+"services", strings.NewReplacer(`{"name":"A","value":"b"}`,
		`{"name":"A","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}`,
		`"template":{`, `"template":{"metadata":{"annotations":{
			"autoscaling.knative.dev/min-scale":"1"}},`,
	).Replace(described("hello", "example.com/hello")))
	h.ready("hello", "True")
	v := h.api.world.get(revisions, "ann", "hello-00001").object.(*v1.Revision)
	s := h.api.road.scales
	for name, asks := range map[string]func(){
		"decide": func() { s.decideAll(false) },
		"follow": func() { s.follow(v, true) },
		"begin":  func() { s.begin(v, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			var asking sync.WaitGroup
			h.api.world.mu.Lock()
			asking.Go(asks)
			time.Sleep(20 * time.Millisecond) // it asks the world by now
			forgotten := make(chan struct{})
			go func() {
				s.forget(&v1.Revision{})
				close(forgotten)
			}()
			select {
			case <-forgotten:
			case <-time.After(20 * time.Second):
				t.Error("who has the world locked waits for the scales")
			}
			h.api.world.mu.Unlock()
			asking.Wait()
			<-forgotten
		})
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

// A service that is ready and loses its Secret goes on with what it has. Then a request to it is
// refused before anything is asked of a node, and its owner is told.
func TestAReadyServiceWithoutItsSecret(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", core+"secrets", secretOf("s", "k", "hush"))
	h.must("POST", objects+"services", strings.NewReplacer(`{"name":"A","value":"b"}`,
		`{"name":"A","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}`,
		`"template":{`, `"template":{"metadata":{"annotations":{
			"autoscaling.knative.dev/min-scale":"1"}},`,
	).Replace(described("hello", "example.com/hello")))
	h.ready("hello", "True")
	h.must("DELETE", core+"secrets/s", "")
	if code, said := h.curl("hello.ann.localhost", "/x"); code != 200 {
		t.Errorf("with its sandbox: %d %q", code, said)
	}
	e := h.api.world.get(revisions, "ann", "hello-00001")
	demand := h.api.road.demand(e.object.(*v1.Revision))
	h.pool.Acquire(demand, func(l *pool.Lease, err error) {
		if err == nil {
			l.Release(false)
		}
	})
	h.until("its sandbox ends", func() bool { return h.pool.Ready(demand) == 0 })
	starts := h.node.starts.Load()
	for range 10 {
		if code, said := h.curl("hello.ann.localhost", "/x"); code != 503 ||
			strings.Contains(said, "secret") {
			t.Errorf("without: %d %q", code, said)
		}
	}
	h.shown(core+"events", `"Warning","MinScaleNotKept","revision/hello-00001"`)
	if n := h.node.starts.Load(); n != starts {
		t.Errorf("%d starts", n-starts)
	}
	h.must("POST", core+"secrets", secretOf("s", "k", "hush"))
	h.until("min-scale is kept again", func() bool { return h.node.starts.Load() > starts })
}
