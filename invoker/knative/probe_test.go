package knative

import (
	"context"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/pool"
	node "github.com/fastiov/fastiov/node-agent/api"
)

// probing returns a description of the service hello with a probe of its container.
func probing(probe string) string {
	return strings.Replace(described("hello", "example.com/hello"), `"ports"`, probe+`,"ports"`, 1)
}

// A program that answers its liveness probe badly is ended, and its Pod shows the next sandbox as
// its container, started again.
func TestAProgramThatIsDeadIsStartedAgain(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	h.must("POST", objects+"services", probing(`"livenessProbe":{"httpGet":{"path":"/talks"},
		"periodSeconds":1,"timeoutSeconds":3,"failureThreshold":1}`))
	h.ready("hello", "True")
	h.until("its Pod has been started again", func() bool {
		all, _ := h.api.world.list(pods, "ann")
		for _, e := range all {
			c := e.object.(*corev1.Pod).Status.ContainerStatuses[0]
			if was := c.LastTerminationState.Terminated; c.RestartCount > 0 && was != nil &&
				strings.Contains(was.Message, "liveness probe failed: GET /talks answers 500") {
				return !strings.Contains(h.table(core+"pods"), ",0")
			}
		}
		return false
	})
}

// probed makes a service whose program rests where one probe of its readiness fails, and returns
// how to count its ready sandboxes.
func (h *house) probed() (ready func() int) {
	h.must("POST", objects+"services", probing(`"readinessProbe":{"httpGet":{"path":"/x"},
		"periodSeconds":1,"timeoutSeconds":3,"failureThreshold":1}`))
	h.ready("hello", "True")
	v := h.api.world.get(revisions, "ann", "hello-00001").object.(*v1.Revision)
	return func() int { return h.pool.Ready(h.api.road.demand(v)) }
}

// A program that says that it is not ready gets no requests until it is.
func TestAProgramThatIsNotReadyRests(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	ready := h.probed()
	for _, busy := range []codes.Code{codes.Unavailable, codes.ResourceExhausted} {
		h.node.refuse.Store(uint32(busy)) // a node that is away says nothing of it
		for until := time.Now().Add(1500 * time.Millisecond); time.Now().Before(until); {
			if ready() != 1 {
				t.Fatalf("it rests for a node that says %s", busy)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	h.node.refuse.Store(uint32(codes.Aborted))
	h.until("it rests", func() bool { return ready() == 0 })
	if n := h.node.starts.Load(); n != 1 {
		t.Errorf("%d starts, want one", n)
	}
	h.node.refuse.Store(uint32(codes.OK))
	h.until("it is back", func() bool { return ready() == 1 })
	if code, said := h.curl("hello.ann.localhost", "/x"); code != 200 {
		t.Errorf("%d %s", code, said)
	}
}

// While a node answers nothing, or is adopting the sandbox, that a probe is late says nothing of
// the program; afterwards it does.
func TestABusyNodeSaysNothing(t *testing.T) {
	for name, busy := range map[string]func(*fake) *atomic.Bool{
		"silent":   func(f *fake) *atomic.Bool { return &f.silent },
		"adopting": func(f *fake) *atomic.Bool { return &f.adopts },
	} {
		t.Run(name, func(t *testing.T) {
			h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
			defer leave()
			ready := h.probed()
			busy(h.node).Store(true)
			h.node.hangs.Store(true)
			// A probe takes 4 s, and after 7 the pool gives up a node that is silent.
			for until := time.Now().Add(6 * time.Second); time.Now().Before(until); {
				if ready() != 1 {
					t.Fatalf("it rests for a node that is %s", name)
				}
				time.Sleep(10 * time.Millisecond)
			}
			busy(h.node).Store(false)
			h.until("it rests for its program", func() bool { return ready() == 0 })
		})
	}
}

// A sandbox that rests is not given up for a Secret that another one would lack.
func TestARestingSandboxIsKeptWithoutItsSecret(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	h.must("POST", core+"secrets", secretOf("s", "k", "hush"))
	h.must("POST", objects+"services", strings.NewReplacer(`{"name":"A","value":"b"}`,
		`{"name":"A","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}`,
		`"template":{`, `"template":{"metadata":{"annotations":{
			"autoscaling.knative.dev/min-scale":"1"}},`).Replace(probing(`"readinessProbe":{
		"httpGet":{"path":"/x"},"periodSeconds":1,"failureThreshold":1}`)))
	h.ready("hello", "True")
	v := h.api.world.get(revisions, "ann", "hello-00001").object.(*v1.Revision)
	ready := func() int { return h.pool.Ready(h.api.road.demand(v)) }
	h.must("DELETE", core+"secrets/s", "")
	h.node.refuse.Store(uint32(codes.Aborted))
	h.until("it rests", func() bool { return ready() == 0 })
	time.Sleep(3 * time.Second) // the scale decides meanwhile
	h.node.refuse.Store(uint32(codes.OK))
	h.until("it is back", func() bool { return ready() == 1 })
	if n := h.node.starts.Load(); n != 1 {
		t.Errorf("%d starts, want one", n)
	}
}

// A command that the node cannot run says nothing of a program, and its owner is told.
func TestAProbeThatIsNotMade(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	h.must("POST", objects+"services", probing(`"livenessProbe":{"exec":{"command":["true"]},
		"periodSeconds":1,"failureThreshold":1}`))
	h.ready("hello", "True")
	h.shown(core+"events", `"Warning","ProbeNotMade","revision/hello-00001"`)
	if n := h.node.starts.Load(); n != 1 {
		t.Errorf("%d starts, want one", n)
	}
}

// An emptyDir is room in the sandbox's memory, and one volume is one place.
func TestEmptyDir(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	with := func(name, mounts, source string) string {
		volumes := `"volumes":[{"name":"v","emptyDir":{` + source + `}}]`
		return strings.NewReplacer(`"ports"`, `"volumeMounts":[`+mounts+`],"ports"`,
			`"containers"`, volumes+`,"containers"`).Replace(described(name, "example.com/hello"))
	}
	one := `{"name":"v","mountPath":"/data"}`
	h.must("POST", objects+"services", with("some", one, `"sizeLimit":"1Mi"`))
	h.must("POST", objects+"services", with("half", one, ""))
	h.must("POST", objects+"services", with("twice", one+`,{"name":"v","mountPath":"/more"}`, ""))
	h.ready("some", "True")
	h.ready("half", "True")
	h.ready("twice", "False")
	why := h.must("GET", objects+"revisions/twice-00001", "")
	if !strings.Contains(why, "mount it once") {
		t.Error(why)
	}
	h.node.mu.Lock()
	defer h.node.mu.Unlock()
	rooms := map[string]uint64{}
	for _, s := range h.node.live {
		rooms[s.Env["K_SERVICE"]] = s.Mounts[0].Room
	}
	if rooms["some"] != 1<<20 || rooms["half"] != defaultMiB<<19 {
		t.Errorf("%v", rooms)
	}
}

// An executor is a fake node that runs commands, too: they end as their names say.
type executor struct{ *fake }

func (executor) Exec(_ context.Context, in *node.ExecRequest) (*node.ExecReply, error) {
	switch in.Command[0] {
	case "true":
		return &node.ExecReply{}, nil
	case "false":
		return &node.ExecReply{Status: 3}, nil
	case "sleep":
		return &node.ExecReply{Late: in.TimeoutMs == 1500}, nil
	}
	return nil, status.Error(codes.Unavailable, "the node is away")
}

// A probe is good, or says what was bad: the program, or the time, or the node.
func TestWhatAProbeSays(t *testing.T) {
	f := executor{&fake{live: map[string]*node.StartRequest{"s": {Id: "s", Port: 9000}}}}
	get := func(path string, port int) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path,
			Port: intstr.FromInt(port)}}
	}
	connects := func(port intstr.IntOrString) corev1.ProbeHandler {
		return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}
	}
	runs := func(command ...string) corev1.ProbeHandler {
		return corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: command}}
	}
	c := &corev1.Container{Ports: []corev1.ContainerPort{{ContainerPort: 9000}}}
	const within = 1500 * time.Millisecond
	for want, probes := range map[string][]corev1.ProbeHandler{
		"": {get("/x", 0), get("x", 9000), connects(intstr.FromInt(0)),
			connects(intstr.FromString("http1")), runs("true")},
		"GET /talks answers 500":              {get("/talks", 0)},
		"no such sandbox":                     {get("/x", 9001), connects(intstr.FromInt(9001))},
		`["false" "-v"] ends with status 3`:   {runs("false", "-v")},
		`["sleep"] has not ended within 1.5s`: {runs("sleep")},
		"the node is away":                    {runs("other")},
		"invalid URL":                         {get("/%", 0)},
	} {
		for _, by := range probes {
			err := ask(t.Context(), pool.Sandbox{ID: "s", Client: node.Local(f)}, c,
				&corev1.Probe{ProbeHandler: by}, within)
			if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) ||
				isLate(err) {
				t.Errorf("%v: %v, want %q", &by, err, want)
			}
		}
	}
	err := ask(t.Context(), pool.Sandbox{ID: "s", Client: node.Local(f)}, c,
		&corev1.Probe{ProbeHandler: get("/sleep", 0)}, 50*time.Millisecond)
	if !isLate(err) {
		t.Errorf("what is not answered in time: %v", err)
	}
}
