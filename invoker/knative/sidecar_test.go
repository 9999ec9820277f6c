package knative

import (
	"strings"
	"testing"

	"github.com/fastiov/fastiov/invoker/access"
	node "github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/limits"
)

const several = `{"metadata":{"name":"hello"},"spec":{"template":{"spec":{"containers":[
	{"name":"cache","image":"example.com/cache","args":["-v"],"workingDir":"/c",
		"securityContext":{"runAsUser":7},"env":[{"name":"SIZE","value":"3"}],
		"resources":{"limits":{"memory":"64Mi","cpu":"500m"},"requests":{"cpu":"100m"}},
		"volumeMounts":[{"name":"s","mountPath":"/s","readOnly":true},
			{"name":"e","mountPath":"/of/cache"}]},
	{"image":"example.com/hello","ports":[{"containerPort":8881}],
		"env":[{"name":"FORWARD","value":"$(K_SERVICE)"}],
		"resources":{"limits":{"memory":"128Mi","cpu":"1"},"requests":{"cpu":"200m"}},
		"volumeMounts":[{"name":"e","mountPath":"/of/hello"},
			{"name":"own","mountPath":"/own"}]}],
	"volumes":[{"name":"s","secret":{"secretName":"s"}},{"name":"e","emptyDir":{}},
		{"name":"own","emptyDir":{}}]}}}}`

// A revision of several containers is one sandbox: that has the memory and CPUs of all, and each
// container its own image, command, variables and files. Only the one that serves has a PORT.
func TestSeveralContainers(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	h.must("POST", objects+"services", several)
	h.ready("hello", "False")
	if of := h.must("GET", objects+"revisions/hello-00001", ""); !strings.Contains(of,
		`"message":"secret \"s\" not found"`) { // which the sidecar alone has
		t.Errorf("its revision says %s", of)
	}
	h.must("POST", core+"secrets", secretOf("s", "token", "hush"))
	h.ready("hello", "True")
	s := h.started("hello-00001")
	if s.Image != "example.com/hello" || s.Port != 8881 || s.MemoryMib != 192+limits.SidecarMiB ||
		s.CpuRequest != 300 || s.CpuLimit != 1500 || s.Env["PORT"] != "8881" ||
		s.Env["FORWARD"] != "hello" || len(s.Mounts) != 2 || len(s.Sidecars) != 1 {
		t.Fatalf("it is started with %v", s)
	}
	side := s.Sidecars[0]
	_, ported := side.Env["PORT"]
	if side.Name != "cache" || side.Image != "example.com/cache" || side.Dir != "/c" ||
		side.User != "7" || side.Args[0] != "-v" || side.Env["SIZE"] != "3" || ported ||
		side.Env["K_SERVICE"] != "hello" || side.Env["K_REVISION"] != "hello-00001" ||
		side.Env["K_CONFIGURATION"] != "hello" || string(side.Mounts[1].Files[0].Data) != "hush" {
		t.Errorf("its sidecar is %v", side)
	}
	if shared := s.Mounts[0]; shared.Path != "/of/hello" || shared.Shared != "e" ||
		shared.Room != 96<<20 || side.Mounts[0].Path != "/of/cache" ||
		side.Mounts[0].Shared != "e" || s.Mounts[1].Shared != "" {
		t.Errorf("their folders are %v and %v", s.Mounts, side.Mounts)
	}
}

// Pods show all containers, and a log is one container's: the one that serves, or that is named.
func TestAContainersLog(t *testing.T) {
	w := wanted{last: -1, sidecar: "cache"}
	var got strings.Builder
	for _, line := range []*node.LogLine{{Text: "served", TimeNs: 1},
		{Text: "cached", Sidecar: "cache", TimeNs: 2}, {Text: "other", Sidecar: "x", TimeNs: 3}} {
		if !w.write(&got, line) {
			t.Error("it has had enough")
		}
	}
	if got.String() != "cached\n" {
		t.Errorf("%q is written", got.String())
	}
	h, leave := newHouse(t, t.TempDir()+"/store", access.NewKey())
	defer leave()
	h.must("POST", core+"secrets", secretOf("s", "token", "hush"))
	h.must("POST", objects+"services", several)
	h.ready("hello", "True")
	h.until("its Pod runs", func() bool {
		all := h.must("GET", core+"pods", "")
		return strings.Contains(all, `"phase":"Running"`)
	})
	all := h.must("GET", core+"pods", "")
	if n := strings.Count(all, `"started":true`); n != 2 {
		t.Errorf("%d of 2 containers run: %s", n, all)
	}
	var pod string
	h.api.mirror.mu.Lock()
	for name := range h.api.mirror.named {
		pod = name.name
	}
	h.api.mirror.mu.Unlock()
	if code, said := h.ask("GET", core+"pods/"+pod+"/log?container=none", "", ""); code != 400 ||
		!strings.Contains(said, "container none is not valid for pod") {
		t.Errorf("%d %s", code, said)
	}
}
