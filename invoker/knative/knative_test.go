package knative

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/embedded"
	"github.com/fastiov/fastiov/invoker/telemetry"
	"github.com/fastiov/fastiov/leaks"
	node "github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// A fake node starts every image but broken ones. Its programs answer with what started them.
type fake struct {
	node.UnimplementedNodeServer
	mu     sync.Mutex
	live   map[string]*node.StartRequest
	starts atomic.Int64
	asleep atomic.Int64  // requests that are not answered
	called atomic.Value  // what the last start is for
	refuse atomic.Uint32 // the code that connections are refused with
	held   chan struct{} // starts are over when it says so; nil: at once
	silent atomic.Bool   // it answers nothing
	hangs  atomic.Bool   // its programs answer nothing
	adopts atomic.Bool   // it is adopting all that lives

	renews atomic.Pointer[renews] // nil: it renews no files
}

// A renews answers a node's Renew.
type renews func(context.Context, *node.RenewRequest) error

func (f *fake) Renew(ctx context.Context, in *node.RenewRequest) (*node.RenewReply, error) {
	renew := f.renews.Load()
	if renew == nil {
		return nil, status.Error(codes.Unimplemented, "sandbox "+in.Id+": it renews no files")
	}
	return &node.RenewReply{}, (*renew)(ctx, in)
}

func (f *fake) Start(_ context.Context, in *node.StartRequest) (*node.StartReply, error) {
	f.starts.Add(1)
	f.called.Store(in.GetCall().GetAction())
	if f.held != nil {
		<-f.held
	}
	if strings.Contains(in.Image, "broken") {
		return nil, status.Error(codes.Internal, "the program ended with 3: no such thing")
	}
	if strings.Contains(in.Image, "slow") {
		time.Sleep(200 * time.Millisecond)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.live[in.Id] = in
	begin := time.Now()
	time.Sleep(time.Millisecond)
	return &node.StartReply{Id: in.Id, InitStatus: 200, Driver: "fake",
		Mounts: uint32(len(in.Mounts)), Sidecars: uint32(len(in.Sidecars)), Spans: []*node.Span{
			{Stage: "vmm", BeginNs: begin.UnixNano(), EndNs: time.Now().UnixNano()}}}, nil
}

func (f *fake) Stop(_ context.Context, in *node.StopRequest) (*node.StopReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.live, in.Id)
	return &node.StopReply{}, nil
}

func (f *fake) Status(ctx context.Context, _ *node.StatusRequest) (*node.StatusReply, error) {
	if f.silent.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	reply := &node.StatusReply{MemoryMib: 1 << 19}
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.live {
		state := "ready"
		if f.adopts.Load() {
			state = "adopting"
		}
		reply.Sandboxes = append(reply.Sandboxes, &node.Sandbox{Id: id, State: state})
	}
	return reply, nil
}

func (f *fake) Connect(s grpc.BidiStreamingServer[node.ConnectRequest, node.ConnectReply]) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	if f.silent.Load() || f.hangs.Load() {
		<-s.Context().Done()
		return s.Context().Err()
	}
	if code := codes.Code(f.refuse.Load()); code != codes.OK {
		return status.Error(code, "the node has no place for it")
	}
	f.mu.Lock()
	of := f.live[first.Id]
	f.mu.Unlock()
	if of == nil || first.Port != of.Port {
		return status.Error(codes.NotFound, "no such sandbox")
	}
	if err := s.SendHeader(nil); err != nil {
		return err
	}
	from, to := io.Pipe()
	go func() {
		for {
			in, err := s.Recv()
			if err != nil {
				to.CloseWithError(err)
				return
			}
			if _, err := to.Write(in.Data); err != nil {
				return
			}
		}
	}()
	r, err := http.ReadRequest(bufio.NewReader(from))
	from.Close()
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if r.URL.Path == "/flood" {
		sent := &node.ConnectReply{Data: []byte("HTTP/1.1 200 OK\r\n\r\n")}
		for err == nil {
			err = s.Send(sent)
			sent = &node.ConnectReply{Data: make([]byte, 64<<10)}
		}
		return err
	}
	if much := map[string]string{"/talks": " " + strings.Repeat("x", 1<<10),
		"/headed": " X\r\nA: " + strings.Repeat("x", 1<<20)}[r.URL.Path]; much != "" {
		return s.Send(&node.ConnectReply{End: true,
			Data: []byte("HTTP/1.1 500" + much + "\r\nContent-Length: 0\r\n\r\n")})
	}
	if r.URL.Path == "/mute" {
		return s.Send(&node.ConnectReply{End: true})
	}
	if r.URL.Path == "/sleep" || r.URL.Path == "/deaf" {
		f.asleep.Add(1)
		<-s.Context().Done()
		return s.Context().Err()
	}
	said := r.URL.Path + " " + of.Env["K_REVISION"] + " " + of.Env["PORT"] + " " + of.Env["A"]
	answer := http.Response{StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1,
		Body: io.NopCloser(strings.NewReader(said)), ContentLength: int64(len(said))}
	var text strings.Builder
	if err := answer.Write(&text); err != nil {
		return err
	}
	return s.Send(&node.ConnectReply{Data: []byte(text.String()), End: true})
}

// A house is an API over a fake node and a store in a file, with the user ann.
type house struct {
	t     *testing.T
	node  *fake
	store store.Store
	pool  *pool.Pool
	api   *API
	http  http.Handler
	key   access.Key

	registry *prometheus.Registry
	spans    *tracetest.SpanRecorder
	mu       sync.Mutex
	kept     []*telemetry.Call
}

func (h *house) keep(c *telemetry.Call) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept = append(h.kept, c)
}

func newHouse(t *testing.T, path string, key access.Key) (h *house, leave func()) {
	t.Helper()
	h = &house{t: t, node: &fake{live: map[string]*node.StartRequest{}}, key: key,
		registry: prometheus.NewRegistry(), spans: tracetest.NewSpanRecorder()}
	counts, err := telemetry.New(h.registry, sdk.NewTracerProvider(
		sdk.WithSpanProcessor(h.spans), sdk.WithIDGenerator(timeline.IDs{})).Tracer("test"))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	s, err := embedded.Open(path, 64<<20, log)
	if err != nil {
		t.Fatal(err)
	}
	h.store = s
	directory := access.NewDirectory(access.Limits{"maxEntities": 100})
	if err := directory.Add(&access.Subject{Name: "ann",
		Namespaces: []access.Namespace{key.Owned("ann")}}); err != nil {
		t.Fatal(err)
	}
	h.pool = pool.New(pool.Config{KeepAlive: time.Minute, Wait: time.Second, Start: time.Minute},
		node.Local(h.node))
	tokens, err := LoadIssuer(path+"-tokens.key", "https://localhost:80")
	if err != nil {
		t.Fatal(err)
	}
	h.api, err = New(Config{Pool: h.pool, Store: s, Directory: directory, Tokens: tokens,
		Domain: "localhost", Mapped: []string{"example.com"},
		Identify: func(_ *http.Request, key access.Key) (*access.Identity, error) {
			return directory.Identify(key.UUID, key.Secret)
		}, Port: "80", Telemetry: counts, Keep: h.keep, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	h.http = h.api.Over(http.NotFoundHandler())
	return h, func() {
		h.api.Close()
		h.pool.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

const objects = "/apis/serving.knative.dev/v1/namespaces/ann/"

func (h *house) ask(method, path, form, body string) (code int, answer string) {
	h.t.Helper()
	r, w := h.request(method, path, body)
	r.Header.Set("Content-Type", form)
	h.http.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// request returns a request of ann's to the API, and what takes its answer.
func (h *house) request(method, path, body string) (*http.Request, *httptest.ResponseRecorder) {
	r := httptest.NewRequest(method, "http://127.0.0.1"+path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+h.key.String())
	return r, httptest.NewRecorder()
}

func (h *house) must(method, path, body string) string {
	h.t.Helper()
	form := "application/json"
	if method == http.MethodPatch {
		form = "application/merge-patch+json"
	}
	code, answer := h.ask(method, path, form, body)
	if code >= 300 {
		h.t.Fatalf("%s %s is answered %d %s", method, path, code, answer)
	}
	return answer
}

func (h *house) curl(host, path string) (int, string) {
	w := httptest.NewRecorder()
	h.http.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://"+host+path, nil))
	return w.Code, w.Body.String()
}

func described(name, image string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"template":{"spec":{"containers":[
		{"image":%q,"ports":[{"containerPort":9000}],"env":[{"name":"A","value":"b"}]}]}}}}`,
		name, image)
}

// until waits for what is to be.
func (h *house) until(what string, is func() bool) {
	h.t.Helper()
	for late := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(late) {
			h.t.Fatalf("it is never so that %s", what)
		}
	}
}

// ready waits until a service has said that it is ready, or that it is not.
func (h *house) ready(name, want string) (message string) {
	h.t.Helper()
	for late := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		var s struct {
			Metadata struct{ Generation int }
			Status   struct {
				ObservedGeneration int
				Conditions         []struct{ Type, Status, Message string }
			}
		}
		answer := h.must("GET", objects+"services/"+name, "")
		if err := json.Unmarshal([]byte(answer), &s); err != nil {
			h.t.Fatal(err)
		}
		for _, c := range s.Status.Conditions {
			if c.Type == "Ready" && c.Status == want &&
				s.Status.ObservedGeneration == s.Metadata.Generation {
				return c.Message
			}
		}
		if time.Now().After(late) {
			h.t.Fatalf("%s is never %s: %s", name, want, answer)
		}
	}
}

func TestAServiceIsServed(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	h.ready("hello", "True")
	if code, said := h.curl("hello.ann.localhost", "/x"); code != 200 ||
		said != "/x hello-00001 9000 b" {
		t.Errorf("%d %q", code, said)
	}
	if n := h.node.starts.Load(); n != 1 {
		t.Errorf("%d starts, want one", n)
	}
	h.until("a start is for its call", func() bool { // scaling may come before it
		h.pool.RetireAll("ann")
		if code, said := h.curl("hello.ann.localhost", "/y"); code != 200 {
			t.Errorf("%d %q", code, said)
		}
		call, _ := h.node.called.Load().(string)
		return call == "ann/hello-00001"
	})
	h.must("DELETE", objects+"services/hello", "")
	h.until("its revision goes with the service", func() bool {
		return !strings.Contains(h.must("GET", objects+"revisions", ""), "hello-00001")
	})
	if code, _ := h.curl("hello.ann.localhost", "/x"); code != 404 {
		t.Errorf("after that: %d", code)
	}
}

// A revision that does not start says why, and traffic stays where it is.
func TestABrokenRevisionGetsNoTraffic(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	h.ready("hello", "True")
	h.must("PATCH", objects+"services/hello", `{"spec":{"template":{"spec":{"containers":[
		{"image":"example.com/broken"}]}}}}`)
	if why := h.ready("hello", "False"); !strings.Contains(why, "the program ended with 3") {
		t.Errorf("it says %q", why)
	}
	if code, said := h.curl("hello.ann.localhost", "/"); code != 200 ||
		!strings.Contains(said, "hello-00001") {
		t.Errorf("%d %q", code, said)
	}
}

// What the next process reads is what this one had, but for the events.
func TestTheNextProcessGoesOn(t *testing.T) {
	path, key := filepath.Join(t.TempDir(), "store"), access.NewKey()
	h, leave := newHouse(t, path, key)
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	h.ready("hello", "True")
	h.must("POST", core+"secrets", secretOf("s", "k", "v"))
	h.must("POST", core+"configmaps", `{"metadata":{"name":"c"},"data":{"k":"v"}}`)
	h.must("POST", mappings, mappingOf("hello.example.com", "Service", "v1", "hello"))
	h.says("hello.example.com", "Ready", "True", "")
	before := map[string]string{}
	for _, k := range kinds {
		if k.Derived { // it is of a process, and its sandboxes
			continue
		}
		path := "/" + pathOf(k.gv()) + "/namespaces/ann/" + k.Names.Plural
		h.until("all is at rest", func() bool {
			is := items(h.must("GET", path, ""))
			time.Sleep(100 * time.Millisecond)
			return is == items(h.must("GET", path, ""))
		})
		if before[path] = items(h.must("GET", path, "")); !strings.Contains(before[path], "uid") {
			t.Errorf("%s has nothing", path)
		}
	}
	leave()
	h, leave = newHouse(t, path, key)
	defer leave()
	if code, said := h.curl("hello.ann.localhost", "/y"); code != 200 {
		t.Errorf("%d %q", code, said)
	}
	for path, before := range before {
		if now := items(h.must("GET", path, "")); now != before {
			t.Errorf("%s\nwas %s\n is %s", path, before, now)
		}
	}
	const old = objects + "services?watch=true&resourceVersion=2&timeoutSeconds=3"
	_, said := h.ask("GET", old, "", "")
	if !strings.Contains(said, `"type":"ERROR"`) || !strings.Contains(said, `"code":410`) {
		t.Errorf("a watch from before is answered %s", said)
	}
}

// items returns what a list has, without the resource versions: those are a process's own.
func items(list string) string {
	_, items, _ := strings.Cut(list, `"items":`)
	return regexp.MustCompile(`"resourceVersion":"\d+",`).ReplaceAllString(items, "")
}

func TestWhatIsRefused(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	for _, c := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"POST", objects + "services", described("hello", "x"), 409, "AlreadyExists"},
		{"POST", objects + "services", described("Bad_Name", "x"), 400, "not a DNS 1035 label"},
		{"POST", objects + "services", `{"metadata":{},"spec":{}}`, 422, "name or generateName"},
		{"PATCH", objects + "services/hello", `{"metadata":{"labels":{"a":"` +
			strings.Repeat("x", 64) + `"}}}`, 422, "metadata.labels: Invalid value"},
		{"PATCH", objects + "services/hello", `{"spec":{"template":{"metadata":{"labels":{
			"a":"b c"}}}}}`, 422, "spec.template.metadata.labels: Invalid value"},
		{"POST", objects + "services?fieldValidation=Strict", `{"metadata":{"name":"a"},"x":1}`,
			400, `unknown field \"x\"`},
		{"PUT", objects + "services/hello", `{"metadata":{"name":"hello","resourceVersion":"1"}}`,
			409, "Conflict"},
		{"GET", objects + "services/none", "", 404, `services.serving.knative.dev \"none\" not found`},
		{"GET", "/apis/serving.knative.dev/v1/namespaces/bob/services", "", 403, "Forbidden"},
		{"GET", objects + "services?labelSelector=%3D%3D", "", 400, "found '=='"},
		{"GET", "/apis/eventing.knative.dev/v1/brokers", "", 404, "could not find"},
		{"PATCH", objects + "services/hello", "[]", 422, "Invalid"},
		{"PATCH", objects + "services/hello", `{"metadata":{"uid":"x"}}`, 409,
			"Precondition failed: UID in precondition: x"},
		{"PATCH", objects + "services/hello", `{"metadata":{"name":"other"}}`, 400,
			"the name of the object (other) does not match"},
		{"PATCH", objects + "services/hello", `{"metadata":{"namespace":"bob"}}`, 400,
			"the namespace of the provided object does not match"},
		{"POST", objects + "services", `{"kind":"Route","metadata":{"name":"a"}}`, 400,
			"the object provided is a"},
		{"POST", objects + "services", "{\"metadata\":" + strings.Repeat(" ", mostBody) + "{}}",
			413, "RequestEntityTooLarge"},
		{"GET", objects + "services?continue=x", "", 400, "continue key is not valid"},
		{"GET", objects + "services?continue=e30", "", 400, "does not recognize this encoded"},
		{"GET", objects + "services?resourceVersion=1&continue=" +
			place{Revision: 1, Start: "a"}.token(), "", 400, "not allowed when using continue"},
		{"GET", objects + "services?continue=" + place{Revision: 1}.token(), "", 400,
			"start key empty"},
	} {
		form := "application/json"
		if c.method == http.MethodPatch {
			form = "application/merge-patch+json"
		}
		if code, said := h.ask(c.method, c.path, form, c.body); code != c.code ||
			!strings.Contains(said, c.want) || !strings.Contains(said, `"kind":"Status"`) {
			t.Errorf("%s %s is answered %d %s, want %d %s", c.method, c.path, code, said, c.code,
				c.want)
		}
	}
	h.key.Secret += "x"
	if code, _ := h.ask("GET", objects+"services", "", ""); code != 401 {
		t.Errorf("a wrong key is answered %d", code)
	}
}

// A user may name any owner, also of a kind that is not here. A later process reads it, too.
func TestAnOwnerOfAnotherKind(t *testing.T) {
	path, key := filepath.Join(t.TempDir(), "store"), access.NewKey()
	h, leave := newHouse(t, path, key)
	owned := strings.Replace(described("hello", "example.com/hello"), `{"name":"hello"`,
		`{"name":"hello","ownerReferences":[{"apiVersion":"apps/v1","kind":"Deployment",`+
			`"name":"x","uid":"y","controller":true}]`, 1)
	h.must("POST", objects+"services", owned)
	h.ready("hello", "True")
	leave()
	h, leave = newHouse(t, path, key)
	defer leave()
	h.ready("hello", "True")
}

// A patch whose steps copy what the last has made twice as large is refused.
func TestAPatchThatGrows(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	var steps []string
	for n := range 30 {
		steps = append(steps, fmt.Sprintf(`{"op":"copy","from":"/spec","path":"/spec/x%d"}`, n))
	}
	code, said := h.ask("PATCH", objects+"services/hello", "application/json-patch+json",
		"["+strings.Join(steps, ",")+"]")
	if code != 422 {
		t.Errorf("%d %.300s", code, said)
	}
}

// Memory below nothing gives nobody room, and more than can be is counted as so much.
func TestMemoryThatIsNone(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	h.must("POST", objects+"services", strings.Replace(described("hello", "example.com/hello"),
		`"ports"`, `"resources":{"limits":{"memory":"-4503599358935040"}},"ports"`, 1))
	h.ready("hello", "False")
	for memory, want := range map[string]int{"-4503599358935040": 1, "1": 1, "1Mi": 1,
		"1048577": 2, "9223372036854775807": mostMiB} {
		c := &corev1.Container{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
			corev1.ResourceMemory: resource.MustParse(memory)}}}
		if got := memoryOf(c); got != want {
			t.Errorf("%s is %d MiB, want %d", memory, got, want)
		}
	}
}

// A dry run changes nothing and meets what is there.
func TestADryRun(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	if code, said := h.ask("POST", objects+"services?dryRun=All", "application/json",
		described("hello", "x")); code != 409 {
		t.Errorf("a dry create of what is there: %d %s", code, said)
	}
	h.must("DELETE", objects+"services", `{"dryRun":["All"]}`)
	h.must("GET", objects+"services/hello", "")
	h.must("DELETE", objects+"services", "")
	h.until("it goes", func() bool {
		code, _ := h.ask("GET", objects+"services/hello", "", "")
		return code == 404
	})
}

// A field that a definition does not have is named in a warning, or is an error where none may be
// unknown; of very many, a hundred are named, in warnings of a few KiB.
func TestUnknownFieldsAreNamed(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	many := `"x":0`
	for n := range 10_000 {
		many += fmt.Sprintf(`,"x%d":0`, n)
	}
	for _, c := range []struct{ fields, query, want string }{
		{`"tamplate":1`, "", `unknown field \"spec.tamplate\"`}, {many, "", `\"spec.x\"`},
		{many, "Ignore", ""}, {many, "Strict", `unknown field \"spec.x\"`},
	} {
		r, w := h.request("POST", objects+"services?dryRun=All&fieldValidation="+c.query,
			strings.Replace(described("hello", "example.com/hello"), `"spec":{`,
				`"spec":{`+c.fields+`,`, 1))
		r.Header.Set("Content-Type", "application/json")
		h.http.ServeHTTP(w, r)
		said := strings.Join(w.Header().Values("Warning"), "\n")
		if strict := c.query == "Strict"; strict != (w.Code == 400) || w.Code != 201 && !strict {
			t.Errorf("%.20s, %s: %d", c.fields, c.query, w.Code)
		} else if strict {
			said = w.Body.String()
		}
		if !strings.Contains(said, c.want) || len(said) > 8<<10 ||
			c.want == "" && strings.Contains(said, "unknown") {
			t.Errorf("%.20s, %s: %d bytes, %.300s", c.fields, c.query, len(said), said)
		}
	}
}
