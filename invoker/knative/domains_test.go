package knative

import (
	"fmt"
	"strings"
	"testing"

	"knative.dev/serving/pkg/apis/serving/v1beta1"

	"github.com/fastiov/fastiov/invoker/access"
)

const mappings = "/apis/serving.knative.dev/v1beta1/namespaces/ann/domainmappings"

func mappingOf(of, kind, version, to string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},
		"spec":{"ref":{"kind":%q,"apiVersion":%q,"name":%q}}}`, of, kind, version, to)
}

// says waits until a mapping's condition is as wanted.
func (h *house) says(of, condition, status, words string) {
	h.t.Helper()
	h.until(fmt.Sprintf("%s is %s %s, %s", of, condition, status, words), func() bool {
		return strings.Contains(h.must("GET", mappings+"/"+of, ""), fmt.Sprintf(
			`{"type":%q,"status":%q`, condition, status)) &&
			strings.Contains(h.must("GET", mappings+"/"+of, ""), words)
	})
}

// A service has a name of its own as long as its DomainMapping and its route are there.
func TestADomainLeadsToAService(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	const serving = "serving.knative.dev/v1"
	h.must("POST", mappings, mappingOf("hello.example.com", "Service", serving, "hello"))
	h.says("hello.example.com", "ReferenceResolved", "False", `service \"hello\" not found`)
	if code, _ := h.curl("hello.example.com", "/"); code != 404 {
		t.Errorf("before there is a service: %d", code)
	}
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	h.ready("hello", "True")
	h.says("hello.example.com", "Ready", "True", `"url":"http://hello.example.com"`)
	for _, host := range []string{"hello.example.com", "HELLO.example.com:80",
		"hello.example.com."} {
		if code, said := h.curl(host, "/x"); code != 200 || said != "/x hello-00001 9000 b" {
			t.Errorf("%s: %d %q", host, code, said)
		}
	}
	h.must("POST", mappings, mappingOf("r.example.com", "Route", serving, "hello"))
	h.says("r.example.com", "Ready", "True", "")
	h.must("POST", mappings, mappingOf("k.example.com", "Service", "v1", "hello"))
	h.says("k.example.com", "Ready", "True", "")
	if table := h.table(mappings); !strings.Contains(table,
		`["r.example.com","http://r.example.com","True",null]`) {
		t.Errorf("the table is %s", table)
	}
	h.must("DELETE", mappings+"/hello.example.com", "")
	h.until("the name is nobody's", func() bool {
		return !h.api.road.owns("hello.example.com")
	})
	h.must("DELETE", objects+"services/hello", "")
	h.says("r.example.com", "ReferenceResolved", "False", `route \"hello\" not found`)
	if code, _ := h.curl("r.example.com", "/"); code != 404 {
		t.Errorf("after the service: %d", code)
	}
}

// Nobody gets a name of the API, of other services, or one that the operator has not opened.
func TestNamesThatNobodyMayHave(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	for of, why := range map[string]string{
		"a.ann.localhost": "names at localhost", "127.0.0.1": "no name",
		"api.example.org": "has opened other domains", "notexample.com": "has opened other domains",
	} {
		h.must("POST", mappings, mappingOf(of, "Service", "serving.knative.dev/v1", "hello"))
		h.says(of, "DomainClaimed", "False", why)
		if of != "a.ann.localhost" && h.api.road.owns(of) {
			t.Errorf("%s is taken", of)
		}
	}
	for _, body := range []string{mappingOf("name", "Service", "v1", "hello"),
		`{"metadata":{"name":"a.example.com"},"spec":{"ref":{"name":"hello"}}}`} {
		if code, said := h.ask("POST", mappings, "application/json", body); code != 400 {
			t.Errorf("%s: %d %s", body, code, said)
		}
	}
	d := newDomains("localhost", nil)
	if d.claim("ann", "hello.example.com") {
		t.Error("a name is given where none is open")
	}
}

// A mapping that is deleted before it has its name has none.
func TestADeletedMappingKeepsNoName(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	const of = "hello.example.com"
	h.must("POST", mappings, mappingOf(of, "Service", "serving.knative.dev/v1", "hello"))
	h.says(of, "DomainClaimed", "True", "")
	e := h.api.world.get(domainMappings, "ann", of)
	h.must("DELETE", mappings+"/"+of, "")
	h.until("the name is nobody's", func() bool { return !h.api.road.owns(of) })
	o := e.object.DeepCopyObject().(*v1beta1.DomainMapping)
	if err := h.api.reconcile.mapping(e, o); err != nil { // it was about to have it
		t.Error(err)
	}
	if !h.api.road.domains.claim("bob", of) {
		t.Error("the name is kept")
	}
}

// A name is one namespace's: the second waits until the first gives it up, also after a restart.
func TestANameIsOneNamespaces(t *testing.T) {
	path, key := t.TempDir()+"/store", access.NewKey()
	h, leave := newHouse(t, path, key)
	const serving = "serving.knative.dev/v1"
	h.must("POST", objects+"services", described("hello", "example.com/hello"))
	h.ready("hello", "True")
	h.api.road.domains.claim("bob", "his.example.com")
	h.must("POST", mappings, mappingOf("his.example.com", "Service", serving, "hello"))
	h.says("his.example.com", "DomainClaimed", "False", "DomainAlreadyClaimed")
	if code, _ := h.curl("his.example.com", "/"); code != 404 {
		t.Errorf("a name of bob's leads to ann's service: %d", code)
	}
	h.must("POST", mappings, mappingOf("hers.example.com", "Service", serving, "hello"))
	h.says("hers.example.com", "Ready", "True", "")
	leave()
	h, leave = newHouse(t, path, key)
	defer leave()
	if h.api.road.domains.claim("bob", "hers.example.com") {
		t.Error("a restart has made her name free")
	}
	if code, _ := h.curl("hers.example.com", "/"); code != 200 {
		t.Errorf("after a restart: %d", code)
	}
	h.says("his.example.com", "Ready", "True", "") // bob's is gone with his process
}
