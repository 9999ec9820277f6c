package knative

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/fastiov/fastiov/invoker/access"
	node "github.com/fastiov/fastiov/node-agent/api"
)

// Logs has each sandbox say what it was started for, one line a second.
func (f *fake) Logs(in *node.LogsRequest, s grpc.ServerStreamingServer[node.LogsReply]) error {
	f.mu.Lock()
	of := f.live[in.Id]
	f.mu.Unlock()
	if of == nil {
		return status.Error(codes.Unavailable, "the node is away")
	}
	if err := s.SendHeader(nil); err != nil {
		return err
	}
	if strings.Contains(of.Image, "breaks") {
		return status.Error(codes.Unavailable, "the node has gone")
	}
	for i, word := range []string{"one", "two", "three"} {
		line := &node.LogLine{TimeNs: time.Unix(int64(i), 0).UnixNano(), Stream: "stdout",
			Text: word + " of " + of.Env["K_REVISION"]}
		if err := s.Send(&node.LogsReply{Line: line}); err != nil {
			return err
		}
	}
	if in.Follow {
		<-s.Context().Done()
	}
	return nil
}

// shown waits until a table has a text.
func (h *house) shown(path, text string) string {
	h.t.Helper()
	table := ""
	h.until(path+" has "+text, func() bool {
		table = h.table(path)
		return strings.Contains(table, text)
	})
	return table
}

// Sandboxes are shown as Pods, and routes as Services, as long as they are there.
func TestPodsAndServicesAreShown(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	const tagged = `{"traffic":[{"latestRevision":true,"percent":100,"tag":"a"}],"template"`
	h.must("POST", objects+"services", strings.Replace(
		described("hello", "example.com/hello"), `{"template"`, tagged, 1))
	h.ready("hello", "True")
	table := h.shown(core+"pods", `"1/1","Running",0`)
	_, of, _ := strings.Cut(table, `"cells":["`)
	pod, _, _ := strings.Cut(of, `"`)
	if !strings.HasPrefix(pod, "hello-00001-deployment-") {
		t.Fatalf("the pod is %q: %s", pod, table)
	}
	list := h.must("GET", core+"pods?labelSelector=serving.knative.dev/service%3Dhello"+
		"&fieldSelector=status.phase%3DRunning", "")
	if !strings.Contains(list, `"name":"`+pod+`"`) ||
		!strings.Contains(list, `"default-container":"user-container"`) &&
			!strings.Contains(list, `kubectl.kubernetes.io/default-container":"user-container"`) {
		t.Errorf("the list is %s", list)
	}
	svc := h.shown(core+"services", "a-hello")
	for _, want := range []string{
		`["hello","ExternalName","\u003cnone\u003e","hello.ann.localhost","80/TCP"`,
		`["a-hello","ExternalName","\u003cnone\u003e","a-hello.ann.localhost","80/TCP"`} {
		if !strings.Contains(svc, want) {
			t.Errorf("the services are %s, want %s", svc, want)
		}
	}
	for query, want := range map[string]string{
		"":                               "one,two,three",
		"tailLines=2&follow=false":       "two,three",
		"tailLines=0":                    "",
		"sinceTime=1970-01-01T00:00:01Z": "two,three",
		"limitBytes=3":                   "one",
		"container=user-container":       "one,two,three",
	} {
		code, said := h.ask("GET", core+"pods/"+pod+"/log?"+query, "", "")
		got := strings.ReplaceAll(strings.TrimSpace(said), " of hello-00001", "")
		if code != 200 || strings.ReplaceAll(got, "\n", ",") != want {
			t.Errorf("log?%s: %d %q, want %s", query, code, said, want)
		}
	}
	if _, said := h.ask("GET", core+"pods/"+pod+"/log?timestamps=true", "", ""); !strings.HasPrefix(
		said, "1970-01-01T00:00:00Z one") {
		t.Errorf("with times: %q", said)
	}
	for query, want := range map[string]int{"container=other": 400, "tailLines=-1": 400,
		"previous=true": 400, "sinceTime=x": 400} {
		if code, said := h.ask("GET", core+"pods/"+pod+"/log?"+query, "", ""); code != want {
			t.Errorf("log?%s: %d %s", query, code, said)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete} {
		for _, path := range []string{"pods", "pods/" + pod, "services/hello", "events"} {
			if code, said := h.ask(method, core+path, "application/json", "{}"); code != 405 {
				t.Errorf("%s %s: %d %s", method, path, code, said)
			}
		}
	}
	h.must("PATCH", objects+"services/hello", `{"spec":{"traffic":[
		{"latestRevision":true,"percent":100}]}}`)
	h.until("the tag's service goes", func() bool {
		return !strings.Contains(h.table(core+"services"), "a-hello")
	})
	h.must("DELETE", objects+"services/hello", "")
	h.until("pods and services go", func() bool {
		return !strings.Contains(h.table(core+"pods")+h.table(core+"services"), "hello")
	})
	if code, _ := h.ask("GET", core+"pods/"+pod+"/log", "", ""); code != 404 {
		t.Errorf("the log of one that is gone: %d", code)
	}
}

// What happens to a service is told as Events, once each, and is found by the object that it is
// about.
func TestWhatHappensIsTold(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	h.ready("hello", "True")
	h.must("POST", objects+"services", described("bad", "example.com/broken"))
	h.ready("bad", "False")
	table := h.shown(core+"events", "Configuration becomes ready")
	for _, want := range []string{
		`"Normal","Created","service/hello","fastiov","Created Configuration \"hello\""`,
		`"Normal","Created","service/hello","fastiov","Created Route \"hello\""`,
		`"Normal","Created","configuration/hello","fastiov","Created Revision \"hello-00001\""`,
		`"Normal","RevisionReady","revision/hello-00001"`,
		`"Normal","ServiceReady","service/hello"`,
		`"Normal","LatestReadyUpdate","configuration/hello"`, `"Normal","Scheduled","pod/hello-`,
		`"Normal","Started","pod/hello-`, `"Warning","ContainerFailed","revision/bad-00001"`,
	} {
		if !strings.Contains(table, want) {
			table = h.shown(core+"events", want)
		}
		if n := strings.Count(table, want); n != 1 {
			t.Errorf("%s is told %d times", want, n)
		}
	}
	h.shown(core+"events", "the program ended with 3")
	of := h.table(core + "events?fieldSelector=involvedObject.kind%3DRevision," +
		"involvedObject.name%3Dhello-00001")
	if !strings.Contains(of, "RevisionReady") || strings.Contains(of, "service/hello") {
		t.Errorf("of the revision alone: %s", of)
	}
	if code, _ := h.ask("GET", core+"events?fieldSelector=spec.x%3D1", "", ""); code != 400 {
		t.Errorf("a field that is not known: %d", code)
	}
	h.until("the next owner is told nothing", func() bool {
		h.api.mirror.leave("ann")
		all, _ := h.api.world.list(events, "ann")
		return len(all) == 0
	})
}

// A namespace has so many Events: the oldest go, also for those that watch, and no warning goes for
// what is routine.
func TestEventsAreBounded(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", core+"configmaps", `{"metadata":{"name":"c"}}`)
	about := h.api.world.get(configMaps, "ann", "c")
	done := make(chan bool)
	h.api.mirror.later(func() {
		h.api.mirror.say(about, "Warning", "Failed", "the one thing that went wrong")
		h.api.mirror.say(about, "Warning", "Failed", "the one thing that went wrong")
		for i := range mostEvents + 10 {
			h.api.mirror.say(about, "Normal", "Counted", strings.Repeat("x", i))
			h.api.mirror.say(about, "Normal", "Counted", strings.Repeat("x", i))
		}
		close(done)
	})
	<-done
	all, _ := h.api.world.list(events, "ann")
	if table := h.table(core + "events"); !strings.Contains(table, "the one thing that") {
		t.Error("the warning is gone")
	}
	if len(all) != mostEvents+1 || slices.ContainsFunc(all, func(e *entry) bool {
		return !strings.Contains(string(e.body), `"count":2`)
	}) {
		t.Errorf("there are %d", len(all))
	}
	h.api.mirror.later(func() {
		h.api.mirror.forgetOld(time.Now().Add(eventsFor + time.Minute))
	})
	h.until("old ones go", func() bool {
		all, _ := h.api.world.list(events, "ann")
		return len(all) == 0 && len(h.api.mirror.said) == 0 && len(h.api.mirror.told) == 0
	})
}

// Of a namespace that was purged nothing is shown to its next owner, though a sandbox of it starts
// still.
func TestAPurgeLeavesNoPods(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", objects+"services", described("hello", "example.com/slow"))
	h.shown(core+"pods", "hello-00001-deployment-")
	h.until("nothing is shown", func() bool {
		h.api.mirror.leave("ann") // again, as its route changes still, other than in a purge
		return !strings.Contains(h.table(core+"pods")+h.table(core+"services"), "hello")
	})
	h.must("DELETE", objects+"services/hello", "")
	h.until("its sandbox has gone", func() bool {
		h.api.mirror.mu.Lock()
		defer h.api.mirror.mu.Unlock()
		return len(h.api.mirror.pods)+len(h.api.mirror.named)+len(h.api.mirror.news) == 0
	})
	if table := h.table(core + "events"); strings.Contains(table, "pod/hello") {
		t.Errorf("the next owner reads %s", table)
	}
}

// A log that cannot be read is an error, and one that breaks off has not ended.
func TestALogThatCannotBeRead(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", objects+"services", described("hello", "example.com/breaks"))
	h.ready("hello", "True")
	h.shown(core+"pods", "Running")
	all, _ := h.api.world.list(pods, "ann")
	at := core + "pods/" + all[0].name.name + "/log"
	func() {
		defer func() {
			if why := recover(); why != http.ErrAbortHandler {
				t.Errorf("a log that breaks off ends with %v", why)
			}
		}()
		h.ask("GET", at, "", "")
	}()
	h.node.mu.Lock()
	clear(h.node.live)
	h.node.mu.Unlock()
	if code, said := h.ask("GET", at+"?follow=true", "", ""); code != 503 ||
		!strings.Contains(said, "the node is away") {
		t.Errorf("a node that is away: %d %s", code, said)
	}
}

// A Pod whose sandbox has crashed is shown until the next may have come, and no longer.
func TestACrashedPodGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		m := newMirror(access.NewDirectory(access.Limits{}), slog.New(slog.DiscardHandler))
		ctx, end := context.WithCancel(t.Context())
		m.run(ctx, w)
		fell := func(of string) *entry {
			o := &corev1.Pod{}
			o.Namespace, o.Name = "ann", of
			e, err := w.show(pods, o)
			if err != nil {
				t.Fatal(err)
			}
			m.later(func() { m.fall("group", e) })
			return e
		}
		has := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			all, _ := w.list(pods, "ann")
			var got []string
			for _, e := range all {
				got = append(got, e.name.name)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s there are %s", what, got)
			}
		}
		first := fell("a")
		time.Sleep(crashedFor / 2)
		fell("b")
		fell("c")
		has("before", "a", "b", "c")
		m.later(func() {
			if e := m.rise("group"); e != first {
				t.Errorf("the first that rises is %v", e)
			}
		})
		time.Sleep(crashedFor / 2)
		has("what rose in time stays:", "a", "b", "c")
		time.Sleep(crashedFor/2 - 1)
		has("before the others' time is over", "a", "b", "c")
		time.Sleep(time.Nanosecond)
		has("then", "a")
		end()
		m.done.Wait()
		if len(m.fallen) > 0 {
			t.Errorf("then %v wait", m.fallen)
		}
	})
}

// A Pod shows what a revision's spec says, and of a very large one what its containers are.
func TestALargeSpecIsShownInPart(t *testing.T) {
	spec := &corev1.PodSpec{Containers: []corev1.Container{
		{Name: "a", Image: "example.com/a", Ports: []corev1.ContainerPort{{ContainerPort: 9000}},
			Env: []corev1.EnvVar{{Name: "A", Value: "b"}}},
		{Name: "side", Image: "example.com/side"}}}
	small := shown(spec)
	if !equality.Semantic.DeepEqual(&small, spec) {
		t.Errorf("of a small one it shows %v", &small)
	}
	small.Containers[0].Env[0].Value = "other"
	if spec.Containers[0].Env[0].Value != "b" {
		t.Error("whoever changes what is shown changes the revision")
	}
	spec.Containers[0].Env[0].Value = strings.Repeat("x", mostShown)
	large := shown(spec)
	if c := large.Containers; len(c) != 2 || c[0].Image != "example.com/a" || c[1].Name != "side" ||
		c[0].Ports[0].ContainerPort != 9000 || large.Size() > mostShown {
		t.Errorf("of a large one it shows %v", &large)
	}
}
