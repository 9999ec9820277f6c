//go:build oracle

package knative

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/access"
)

// A server is an API that is asked: ours, or the oracle.
type server struct {
	client *http.Client
	base   string
	token  string
}

// A reply holds a server's answer, read.
type reply struct {
	code     int
	warnings []string
	body     any
}

// send sends a request. What the server itself has given an object, a body names as $VERSION and
// $UID.
func (s *server) send(t *testing.T, q request) reply {
	t.Helper()
	body := q.body
	if strings.Contains(body, "$VERSION") || strings.Contains(body, "$UID") {
		has := s.send(t, request{method: http.MethodGet, path: q.of})
		meta, _ := dig(has.body, "metadata").(map[string]any)
		version, uid := cmp.Or(meta["resourceVersion"], any("7")), cmp.Or(meta["uid"], any("none"))
		body = strings.NewReplacer("$VERSION", fmt.Sprint(version),
			"$UID", fmt.Sprint(uid)).Replace(body)
	}
	r, err := http.NewRequestWithContext(t.Context(), q.method, s.base+q.path,
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", cmp.Or(q.form, "application/json"))
	r.Header.Set("Authorization", "Bearer "+s.token)
	answer, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := reply{code: answer.StatusCode, warnings: answer.Header.Values("Warning")}
	if err := json.Unmarshal(text, &a.body); err != nil {
		a.body = string(text)
	}
	return a
}

func dig(of any, path ...string) any {
	for _, key := range path {
		m, _ := of.(map[string]any)
		of = m[key]
	}
	return of
}

// Ids and versions differ, and so do the addresses that a message of Knative's has, and whole
// objects.
var differing = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|0x[0-9a-f]+|` +
	`Invalid value: "\{.*\}"|ResourceVersion in record \(\d+\)`)

// common returns of an answer what two servers are to have in common: not ids, times, versions and
// owners of fields, and nothing where there is nothing.
func common(of any) any {
	switch of := of.(type) {
	case map[string]any:
		left := map[string]any{}
		for key, value := range of {
			switch key {
			case "uid", "resourceVersion", "managedFields", "continue":
				continue
			case "creationTimestamp", "deletionTimestamp":
				value = value != nil
			case "causes": // that server tells some twice
				value = once(value)
			}
			if value = common(value); value != nil && value != false {
				left[key] = value
			}
		}
		if len(left) == 0 {
			return nil
		}
		return left
	case []any:
		var left []any
		for _, value := range of {
			left = append(left, common(value))
		}
		if len(left) == 0 {
			return nil
		}
		return left
	case string:
		of, _, _ = strings.Cut(of, "Immutable fields changed") // a dump of pointers follows
		return differing.ReplaceAllString(of, "…")
	}
	return of
}

// once returns a list without what it has twice.
func once(of any) any {
	var left []any
	all, _ := of.([]any)
	for _, value := range all {
		if !slices.ContainsFunc(left, func(v any) bool { return reflect.DeepEqual(v, value) }) {
			left = append(left, value)
		}
	}
	return left
}

// differences says where two answers differ.
func differences(at string, ours, theirs any) (all []string) {
	a, is := ours.(map[string]any)
	b, are := theirs.(map[string]any)
	if !is || !are {
		if !reflect.DeepEqual(ours, theirs) {
			return []string{fmt.Sprintf("%s: %s, oracle %s", at, short(ours), short(theirs))}
		}
		return nil
	}
	keys := map[string]bool{}
	for key := range a {
		keys[key] = true
	}
	for key := range b {
		keys[key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		all = append(all, differences(at+"."+key, a[key], b[key])...)
	}
	return all
}

func short(of any) string {
	text, _ := json.Marshal(of)
	return string(text[:min(len(text), 600)])
}

// compare sends a request to both and says how their answers differ.
func compare(t *testing.T, ours, oracle *server, q request) []string {
	t.Helper()
	a, b := ours.send(t, q), oracle.send(t, q)
	if a.code != b.code {
		return []string{fmt.Sprintf("%d, oracle %d: %s, oracle %s", a.code, b.code,
			short(dig(a.body, "message")), short(dig(b.body, "message")))}
	}
	found := differences("", common(a.body), common(b.body))
	if !slices.Equal(a.warnings, b.warnings) {
		found = append(found, fmt.Sprintf("warnings %q, oracle %q", a.warnings, b.warnings))
	}
	return found
}

// startOracle runs the oracle until the test ends.
func startOracle(t *testing.T) *server {
	t.Helper()
	program := os.Getenv("FASTIOV_TEST_ORACLE")
	if program == "" {
		t.Skip("the oracle is not built: run make test ONLY=full/knative-oracle")
	}
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}",
		"knative.dev/serving").Output()
	if err != nil {
		t.Fatal(err)
	}
	definitions := filepath.Join(strings.TrimSpace(string(module)), "config/core/300-resources")
	cmd := exec.CommandContext(t.Context(), program, "-dir", t.TempDir(), "-user", "ann",
		"-definitions", definitions)
	cmd.Env = append(os.Environ(), "SYSTEM_NAMESPACE=knative-serving")
	end, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end.Close(); _ = cmd.Wait() })
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the oracle does not begin: %v", err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(transport.CloseIdleConnections)
	s := &server{client: &http.Client{Transport: transport}, base: strings.TrimSpace(address)}
	for resource := range plurals { // its caches fill at the first request for each
		for s.send(t, request{method: http.MethodGet, path: objects + resource}).code !=
			http.StatusOK {
			time.Sleep(50 * time.Millisecond)
		}
	}
	return s
}

// startOurs serves the API without reconcilers, so its objects, too, stay as they were sent.
func startOurs(t *testing.T, over func(http.Handler) http.Handler) *server {
	t.Helper()
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	h.api.reconcile.queue.ShutDown()
	s := httptest.NewServer(over(h.http))
	t.Cleanup(func() { s.Close(); leave() })
	return &server{client: s.Client(), base: s.URL, token: h.key.String()}
}

func asItIs(h http.Handler) http.Handler { return h }

// Random requests are answered as Kubernetes's API server with Knative's definitions and admission
// answers them: with the same status, reason and body, but for ids, times and versions.
func TestAnswersAreTheOracles(t *testing.T) {
	oracle, ours := startOracle(t), startOurs(t, asItIs)
	seed, requests := number("FASTIOV_TEST_SEED", 1), number("FASTIOV_TEST_REQUESTS", 5000)
	g := newGenerator(uint64(seed))
	kinds := map[string]int{}
	differ := 0
	for n := range requests {
		q := g.next()
		kinds[q.sort]++
		for _, d := range compare(t, ours, oracle, q) {
			differ++
			t.Errorf("seed %d, request %d, %s %s %s %.300s\n%s", seed, n, q.sort, q.method, q.path,
				q.body, d)
		}
		if differ > 200 {
			t.Fatalf("%d differences in %d requests", differ, n+1)
		}
	}
	t.Logf("%d requests by seed %d: %v", requests, seed, kinds)
}

// The comparison finds a single field that is planted in one answer.
func TestAPlantedDifferenceIsFound(t *testing.T) {
	oracle := startOracle(t)
	ours := startOurs(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			record := httptest.NewRecorder()
			h.ServeHTTP(record, r)
			maps.Copy(w.Header(), record.Header())
			w.WriteHeader(record.Code)
			_, _ = io.WriteString(w, strings.Replace(record.Body.String(),
				`"timeoutSeconds":300`, `"timeoutSeconds":301`, 1))
		})
	})
	q := request{method: http.MethodPost, path: objects + "services",
		body: `{"apiVersion":"serving.knative.dev/v1","kind":"Service",` +
			strings.Replace(described("planted", "example.com/planted")[1:], `9000`,
				`9000,"protocol":"TCP"`, 1)}
	found := compare(t, ours, oracle, q)
	if len(found) != 1 || !strings.HasPrefix(found[0], ".spec.template.spec.timeoutSeconds: 301") {
		t.Errorf("found %q", found)
	}
}

func number(variable string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(variable)); err == nil {
		return n
	}
	return otherwise
}

// A request is one of a user's.
type request struct {
	sort, method, path, form, body string
	of                             string // the path of the object that a body is about
}

// A generator makes requests, good ones and bad ones.
type generator struct{ *rand.Rand }

func newGenerator(seed uint64) *generator { return &generator{rand.New(rand.NewPCG(seed, 21))} }

func one[T any](g *generator, of ...T) T { return of[g.IntN(len(of))] }

// rarely reports true once in so many times.
func (g *generator) rarely(n int) bool { return g.IntN(n) == 0 }

var plurals = map[string]string{"services": "Service", "configurations": "Configuration",
	"routes": "Route", "revisions": "Revision"}

func (g *generator) next() request {
	resource := one(g, "services", "services", "configurations", "routes", "revisions")
	name := one(g, "a", "b", "c", "d-e", "f")
	all := objects + resource
	q := request{path: all + "/" + name, of: all + "/" + name}
	switch n := g.IntN(100); {
	case n < 40:
		q.sort, q.method, q.path = "create", http.MethodPost, all
		q.body = g.object(resource, name, false)
	case n < 50:
		q.sort, q.method = "get", http.MethodGet
	case n < 57:
		q.sort, q.method = "list", http.MethodGet
		q.path = all + one(g, "", "?labelSelector=l%3Da", "?labelSelector=l", "?labelSelector=l%3D",
			"?fieldSelector=metadata.name%3Da", "?labelSelector=%21l", "?limit=2",
			"?limit=2&continue=bad", "?limit=1&resourceVersion=1&continue="+theRest,
			"?limit=2&continue="+theRest,
			"?labelSelector=l+in+(a,b)",
			"?labelSelector=%3D", "?fieldSelector=x")
	case n < 73:
		q.sort, q.method, q.body = "update", http.MethodPut, g.object(resource, name, true)
	case n < 88:
		q.sort, q.method = "patch", http.MethodPatch
		q.form, q.body = g.patch()
	default:
		q.sort, q.method, q.body = "delete", http.MethodDelete, one(g, "", "",
			`{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Foreground"}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Orphan"}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"None"}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Orphan",
				"orphanDependents":true}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","orphanDependents":true}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"resourceVersion":"$VERSION"}}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"resourceVersion":"1"}}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"$UID"}}`,
			`{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"no"}}`)
		if g.rarely(8) {
			q.sort, q.path = "deletecollection", all+one(g, "?labelSelector=l%3Da", "?limit=1",
				"?fieldSelector=metadata.name%3Db", "?labelSelector=%3D")
		} else if q.body == "" {
			q.path += one(g, "", "?propagationPolicy=Foreground", "?propagationPolicy=Orphan",
				"?propagationPolicy=x", "?orphanDependents=false")
		}
	}
	if q.method != http.MethodGet && !strings.Contains(q.path, "?") && g.rarely(6) {
		q.path += one(g, "?fieldValidation=Strict", "?fieldValidation=Ignore", "?dryRun=All")
	}
	return q
}

// theRest is a token that is good: the rest of a list.
var theRest = base64.RawURLEncoding.EncodeToString([]byte(
	`{"v":"meta.k8s.io/v1","rv":-1,"start":"b\u0000"}`))

type doc = map[string]any

func (g *generator) object(resource, name string, update bool) string {
	meta := doc{"name": name}
	if g.rarely(3) {
		meta["labels"] = doc{"l": one(g, "a", "b", "", "c")}
	}
	if g.rarely(4) {
		meta["annotations"] = g.annotations()
	}
	if update {
		meta["resourceVersion"] = one(g, "$VERSION", "$VERSION", "$VERSION", "1")
		if g.rarely(10) {
			delete(meta, "resourceVersion")
		}
	}
	spec := doc{}
	switch resource {
	case "services":
		spec["template"] = g.template(name)
		if g.rarely(3) {
			spec["traffic"] = g.traffic()
		}
	case "configurations":
		spec["template"] = g.template(name)
	case "routes":
		spec["traffic"] = g.traffic()
	case "revisions":
		spec = g.revision()
	}
	if g.rarely(30) {
		spec["unknown"] = one(g, any("x"), any(doc{"a": 1}), any(5))
	}
	o := doc{"apiVersion": "serving.knative.dev/v1", "kind": plurals[resource],
		"metadata": meta, "spec": spec}
	if g.rarely(20) {
		o["status"] = doc{"observedGeneration": 7}
	}
	if g.rarely(40) {
		delete(o, "spec")
	}
	text, _ := json.Marshal(o)
	return string(text)
}

func (g *generator) annotations() doc {
	return one(g,
		doc{"note": "x"},
		doc{"autoscaling.knative.dev/min-scale": one(g, "0", "1", "-1", "x", "5")},
		doc{"autoscaling.knative.dev/max-scale": one(g, "0", "3", "-1", "x"),
			"autoscaling.knative.dev/min-scale": "2"},
		doc{"autoscaling.knative.dev/target": one(g, "10", "0.001", "x")},
		doc{"autoscaling.knative.dev/class": one(g, "kpa.autoscaling.knative.dev",
			"hpa.autoscaling.knative.dev", "other")},
		doc{"autoscaling.knative.dev/window": one(g, "60s", "1s", "2h", "x")},
		doc{"serving.knative.dev/rollout-duration": one(g, "10s", "x", "-1s")},
		doc{"serving.knative.dev/unknown": "x"},
		doc{"serving.knative.dev/creator": "bob"},
	)
}

func (g *generator) template(name string) doc {
	t := doc{"spec": g.revision()}
	meta := doc{}
	if g.rarely(5) {
		meta["name"] = one(g, name+"-one", name+"-two", "other-one", "Bad_", name)
	}
	if g.rarely(4) {
		meta["annotations"] = g.annotations()
	}
	if g.rarely(8) {
		meta["labels"] = one(g, doc{"l": "a"}, doc{"serving.knative.dev/service": "x"})
	}
	if len(meta) > 0 || g.rarely(6) {
		t["metadata"] = meta
	}
	if g.rarely(30) {
		delete(t, "spec")
	}
	return t
}

func (g *generator) revision() doc {
	r := doc{"containers": []any{g.container()}}
	add := func(n int, key string, value any) {
		if g.rarely(n) {
			r[key] = value
		}
	}
	add(4, "containerConcurrency", one(g, any(0), any(1), any(1000), any(-1), any(1001)))
	add(4, "timeoutSeconds", one(g, any(1), any(600), any(601), any(-1), any(0)))
	add(8, "responseStartTimeoutSeconds", one(g, 1, 300, 601, -5))
	add(8, "idleTimeoutSeconds", one(g, 1, 300, 601, -5))
	add(10, "serviceAccountName", one(g, "default", "bad@name", ""))
	add(20, "hostNetwork", true)
	add(20, "nodeSelector", doc{"a": "b"})
	add(20, "enableServiceLinks", one(g, true, false))
	add(20, "runtimeClassName", one(g, "runc", ""))
	add(20, "automountServiceAccountToken", one(g, true, false))
	add(25, "unknown", 1)
	add(25, "imagePullSecrets", []any{doc{"name": "x"}})
	add(8, "volumes", one(g,
		[]any{doc{"name": "v", "secret": doc{"secretName": "s"}}},
		[]any{doc{"name": "v", "configMap": doc{"name": "c"}}},
		[]any{doc{"name": "v", "emptyDir": doc{}}},
		[]any{doc{"name": "v", "hostPath": doc{"path": "/"}}},
		[]any{doc{"name": "V_"}},
		[]any{doc{"name": "v", "projected": doc{"sources": []any{
			doc{"secret": doc{"name": "s"}}}}}}))
	if g.rarely(25) {
		r["containers"] = one(g, []any{}, []any{g.container(), g.container()}, []any{doc{}})
	}
	return r
}

func (g *generator) container() doc {
	c := doc{"image": one(g, "example.com/one", "example.com/two:1", "three")}
	add := func(n int, key string, value any) {
		if g.rarely(n) {
			c[key] = value
		}
	}
	add(30, "image", one(g, "", "BAD image"))
	add(6, "name", one(g, "user-container", "x", "BAD_", "queue-proxy"))
	add(5, "ports", one(g,
		[]any{doc{"containerPort": 8080}}, []any{doc{"containerPort": 0}},
		[]any{doc{"containerPort": 70000}}, []any{doc{"name": "h2c", "containerPort": 81}},
		[]any{doc{"name": "bad", "containerPort": 81}}, []any{doc{"containerPort": 8012}},
		[]any{doc{"containerPort": 1}, doc{"containerPort": 2}},
		[]any{doc{"hostPort": 80}}, []any{doc{"protocol": "UDP", "containerPort": 9}}))
	add(4, "env", one(g,
		[]any{doc{"name": "A", "value": "b"}}, []any{doc{"name": "", "value": "b"}},
		[]any{doc{"name": "PORT", "value": "1"}},
		[]any{doc{"name": "A", "valueFrom": doc{"secretKeyRef": doc{"name": "s", "key": "k"}}}},
		[]any{doc{"name": "A", "valueFrom": doc{"fieldRef": doc{"fieldPath": "metadata.name"}}}}))
	add(5, "resources", one(g,
		doc{"limits": doc{"memory": "64Mi", "cpu": 1}},
		doc{"requests": doc{"memory": "64Mi"}, "limits": doc{"memory": "32Mi"}},
		doc{"limits": doc{"cpu": "100m"}},
		doc{"limits": doc{"memory": 1048576}}))
	probe := func() any {
		return one(g, doc{"httpGet": doc{"path": "/x"}}, doc{"tcpSocket": doc{}},
			doc{"httpGet": doc{"path": "/x", "port": 8080}, "periodSeconds": 5},
			doc{"exec": doc{"command": []any{"x"}}}, doc{"periodSeconds": -1},
			doc{"grpc": doc{"port": 9}}, doc{"httpGet": doc{"path": "/x", "scheme": "HTTPS"}},
			doc{"httpGet": doc{}, "tcpSocket": doc{}}, doc{"timeoutSeconds": 0},
			doc{"successThreshold": 0}, doc{"failureThreshold": -1})
	}
	add(6, "readinessProbe", probe())
	add(8, "livenessProbe", probe())
	add(15, "startupProbe", probe())
	add(8, "securityContext", one(g, doc{"runAsUser": 1000}, doc{"runAsUser": -1},
		doc{"privileged": true}, doc{"readOnlyRootFilesystem": true},
		doc{"capabilities": doc{"add": []any{"NET_ADMIN"}}}, doc{"runAsNonRoot": true}))
	add(10, "volumeMounts", one(g, []any{doc{"name": "v", "mountPath": "/v"}},
		[]any{doc{"name": "v", "mountPath": "v"}}, []any{doc{"name": "w", "mountPath": "/v"}},
		[]any{doc{"name": "v", "mountPath": "/v", "readOnly": true}}))
	add(10, "command", []any{"a", "b"})
	add(12, "imagePullPolicy", one(g, "Always", "IfNotPresent", "Bad"))
	add(20, "lifecycle", doc{"preStop": doc{}})
	add(20, "stdin", true)
	add(20, "terminationMessagePolicy", one(g, "File", "Bad"))
	add(20, "unknown", "x")
	return c
}

func (g *generator) traffic() any {
	return one(g,
		any([]any{doc{"configurationName": "a", "percent": 100}}),
		any([]any{doc{"latestRevision": true, "percent": 100}}),
		any([]any{doc{"revisionName": "a-00001", "percent": 100}}),
		any([]any{doc{"revisionName": "a-00001", "percent": 60},
			doc{"revisionName": "a-00002", "percent": 40, "tag": "two"}}),
		any([]any{doc{"revisionName": "a-00001", "percent": 60}}),
		any([]any{doc{"revisionName": "a-00001", "percent": 101}}),
		any([]any{doc{"revisionName": "a-00001", "percent": -1}}),
		any([]any{doc{"revisionName": "a-00001", "latestRevision": true, "percent": 100}}),
		any([]any{doc{"revisionName": "a-00001", "configurationName": "a", "percent": 100}}),
		any([]any{doc{"percent": 100}}),
		any([]any{doc{"latestRevision": false, "percent": 100}}),
		any([]any{doc{"revisionName": "A_", "percent": 100}}),
		any([]any{doc{"configurationName": "a", "percent": 100, "tag": "Bad_tag"}}),
		any([]any{doc{"configurationName": "a", "percent": 50, "tag": "t"},
			doc{"configurationName": "a", "percent": 50, "tag": "t"}}),
		any([]any{doc{"configurationName": "a", "percent": 100, "url": "http://x"}}),
		any([]any{}),
	)
}

func (g *generator) patch() (form, body string) {
	merge, steps := "application/merge-patch+json", "application/json-patch+json"
	c := one(g,
		[2]string{merge, `{"metadata":{"labels":{"l":"b"}}}`},
		[2]string{merge, `{"metadata":{"labels":{"l":null}}}`},
		[2]string{merge, `{"metadata":{"annotations":{"note":"y"}}}`},
		[2]string{merge, `{"metadata":{"annotations":{"serving.knative.dev/creator":"eve"}}}`},
		[2]string{merge, `{"metadata":{"resourceVersion":"1"}}`},
		[2]string{merge, `{"metadata":{"finalizers":["example.com/f"]}}`},
		[2]string{merge, `{"metadata":{"finalizers":["foregroundDeletion","example.com/f"]}}`},
		[2]string{merge, `{"metadata":{"finalizers":["orphan","foregroundDeletion"]}}`},
		[2]string{merge, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Secret",
			"name":"s","uid":"u","blockOwnerDeletion":true}]}}`},
		[2]string{merge, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Event",
			"name":"","uid":""}]}}`},
		[2]string{merge, `{"metadata":{"ownerReferences":null}}`},
		[2]string{merge, `{"metadata":{"finalizers":null}}`},
		[2]string{merge, `{"spec":{"template":{"spec":{"timeoutSeconds":10}}}}`},
		[2]string{merge, `{"spec":{"template":{"spec":{"timeoutSeconds":10000}}}}`},
		[2]string{merge, `{"spec":{"template":{"spec":{"containerConcurrency":null}}}}`},
		[2]string{merge, `{"spec":{"template":{"spec":{"containers":[{"image":"other"}]}}}}`},
		[2]string{merge, `{"spec":{"template":{"metadata":{"name":"a-new"}}}}`},
		[2]string{merge, `{"spec":{"traffic":[{"latestRevision":true,"percent":100}]}}`},
		[2]string{merge, `{"spec":{"unknown":1}}`},
		[2]string{merge, `{"spec":null}`},
		[2]string{merge, `{"status":{"observedGeneration":9}}`},
		[2]string{merge, `{}`},
		[2]string{steps, `[{"op":"add","path":"/metadata/labels","value":{"l":"c"}}]`},
		[2]string{steps, `[{"op":"replace","path":"/spec/template/spec/containers/0/image",
			"value":"yet"}]`},
		[2]string{steps, `[{"op":"remove","path":"/spec/template"}]`},
		[2]string{steps, `[{"op":"test","path":"/metadata/name","value":"nobody"}]`},
		[2]string{steps, `[{"op":"remove","path":"/nothing"}]`},
	)
	return c[0], c[1]
}
