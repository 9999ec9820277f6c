//go:build knative

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	watching "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	clients "knative.dev/serving/pkg/client/clientset/versioned/typed/serving/v1"

	"github.com/fastiov/fastiov/node-agent/api"
)

// A knative is a node with Knative's own client.
type knative struct {
	t       *testing.T
	dir     string
	address string
	args    []string
	config  *rest.Config
	clients.ServingV1Interface
}

// newKnative runs `fastiov up` with simulated sandboxes until the test ends.
func newKnative(t *testing.T, args ...string) *knative {
	t.Helper()
	k := &knative{t: t, dir: t.TempDir(), address: listenLater(t)}
	k.args = slices.Concat([]string{"up", "--foreground", "--sandbox", "sim", "--sim-start", "1ms",
		"--memory", "262144", "--metrics", "", "--listen", k.address,
		"--mapped-domains", "*", "--run-dir", k.run(),
		"--state-dir", k.dir}, args)
	k.up()
	k.config = k.as("")
	k.ServingV1Interface = clients.NewForConfigOrDie(k.config)
	return k
}

func (k *knative) run() string { return filepath.Join(k.dir, "run") }

// up starts the node, and returns what kills it.
func (k *knative) up() (kill func()) {
	k.t.Helper()
	cmd := fastiov(k.t, k.args...)
	start(k.t, cmd)
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", k.address)
		if err == nil {
			conn.Close()
			break
		}
		if time.Now().After(end) {
			k.t.Fatal(err)
		}
	}
	return func() {
		_ = cmd.Process.Kill()
		_, _ = cmd.Process.Wait()
	}
}

// as returns what `fastiov kubeconfig` prints for a key; empty: the node's own.
func (k *knative) as(key string) *rest.Config {
	k.t.Helper()
	cmd := fastiov(k.t, "kubeconfig", "--run-dir", k.run(), "--state-dir", k.dir)
	if key != "" {
		cmd.Args = append(cmd.Args, "--key-file", "-")
		cmd.Stdin = strings.NewReader(key)
	}
	text, err := cmd.Output()
	if err != nil {
		k.t.Fatalf("fastiov kubeconfig: %v", err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		k.t.Fatal(err)
	}
	config.QPS, config.Burst = 10_000, 10_000
	return config
}

func service(name, image string) *v1.Service {
	s := &v1.Service{}
	s.Name = name
	s.Spec.Template.Spec.Containers = []corev1.Container{{Image: image}}
	return s
}

// fromZero has a service's sandboxes start with its first request.
func fromZero(s *v1.Service) *v1.Service {
	s.Spec.Template.Annotations = map[string]string{"autoscaling.knative.dev/initial-scale": "0"}
	return s
}

// create makes a service and waits by the watch, as kn does, until it is ready or has failed.
func (k *knative) create(s *v1.Service) *v1.Service {
	k.t.Helper()
	made, err := k.Services("guest").Create(k.t.Context(), s, metav1.CreateOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	return k.await(made)
}

func (k *knative) await(s *v1.Service) *v1.Service {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), time.Minute)
	defer cancel()
	w, err := k.Services("guest").Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + s.Name, ResourceVersion: s.ResourceVersion})
	if err != nil {
		k.t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		now, is := e.Object.(*v1.Service)
		if !is {
			k.t.Fatalf("the watch brings %+v", e.Object)
		}
		if e.Type == watching.Modified && now.Generation == now.Status.ObservedGeneration &&
			!now.Status.GetCondition(v1.ServiceConditionReady).IsUnknown() {
			return now
		}
	}
	now, err := k.Services("guest").Get(k.t.Context(), s.Name, metav1.GetOptions{})
	k.t.Fatalf("%s never became ready: %+v %v", s.Name, now.Status, err)
	return nil
}

// curl sends a request to a URL of a service. All names below localhost lead here.
func (k *knative) curl(url string) (code int, body string) {
	k.t.Helper()
	answer, err := k.client().Get(url)
	if err != nil {
		k.t.Error(err)
		return 0, ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		k.t.Error(err)
	}
	return answer.StatusCode, string(text)
}

func (k *knative) sandboxes() int {
	k.t.Helper()
	var status api.StatusReply
	out := must(k.t, "status", "--json", "--run-dir", k.run())
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		k.t.Fatal(err)
	}
	return len(status.Sandboxes)
}

// A service goes from its creation to its end as in a cluster: it becomes ready with a
// configuration, a revision and a route, answers, is changed and rolled back, and goes with them.
func TestALifeOfAKnativeService(t *testing.T) {
	k := newKnative(t)
	s := k.create(service("hello", "example.com/hello:1"))
	ready := s.Status.GetCondition(v1.ServiceConditionReady)
	if !ready.IsTrue() || s.Status.LatestReadyRevisionName != "hello-00001" {
		t.Fatalf("%+v", s.Status)
	}
	if want := "http://hello.guest.localhost:" + port(t, k.address); s.Status.URL.String() != want {
		t.Errorf("the URL is %s, want %s", s.Status.URL, want)
	}
	if code, body := k.curl(s.Status.URL.String() + "/path"); code != 200 ||
		!strings.Contains(body, "GET /path of hello.guest.localhost") {
		t.Errorf("%d %s", code, body)
	}
	ctx := t.Context()
	v, err := k.Revisions("guest").Get(ctx, "hello-00001", metav1.GetOptions{})
	if err != nil || !v.IsReady() || v.Labels["serving.knative.dev/service"] != "hello" {
		t.Fatalf("%+v %v", v, err)
	}
	config, err := k.Configurations("guest").Get(ctx, "hello", metav1.GetOptions{})
	if err != nil || !config.IsReady() || config.Generation != config.Status.ObservedGeneration {
		t.Fatalf("%+v %v", config, err)
	}
	to, err := k.Routes("guest").Get(ctx, "hello", metav1.GetOptions{})
	if err != nil || !to.IsReady() {
		t.Fatalf("%+v %v", to, err)
	}

	// a second revision, by a merge patch, with the first at a tag and a quarter of the traffic
	s, err = k.Services("guest").Patch(ctx, "hello", types.MergePatchType, []byte(`{"spec":{
		"template":{"spec":{"containers":[{"image":"example.com/hello:2"}]}},
		"traffic":[{"latestRevision":true,"percent":75},
			{"revisionName":"hello-00001","percent":25,"tag":"old"},
			{"latestRevision":true,"tag":"new"}]}}`), metav1.PatchOptions{})
	if err != nil || s.Generation != 2 {
		t.Fatalf("generation %d, %v", s.Generation, err)
	}
	s = k.await(s)
	if latest := s.Status.LatestReadyRevisionName; !s.IsReady() || latest != "hello-00002" ||
		len(s.Status.Traffic) != 3 {
		t.Fatalf("%+v", s.Status)
	}
	for _, target := range s.Status.Traffic[1:] {
		if code, body := k.curl(target.URL.String()); code != 200 ||
			!strings.Contains(body, target.Tag+"-hello.guest.localhost") {
			t.Errorf("tag %s: %d %s", target.Tag, code, body)
		}
	}

	// a revision that Knative's rules refuse, and one with a field that there is not
	_, err = k.Services("guest").Patch(ctx, "hello", types.MergePatchType, []byte(
		`{"spec":{"template":{"spec":{"hostNetwork":true}}}}`), metav1.PatchOptions{})
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(),
		"must not set the field(s): spec.template.spec.hostNetwork") {
		t.Errorf("hostNetwork is answered %v", err)
	}
	_, err = k.Services("guest").Patch(ctx, "hello", types.MergePatchType, []byte(
		`{"spec":{"tamplate":1}}`), metav1.PatchOptions{FieldValidation: "Strict"})
	if !apierrors.IsBadRequest(err) ||
		!strings.Contains(err.Error(), `unknown field "spec.tamplate"`) {
		t.Errorf("a field that there is not is answered %v", err)
	}

	// what is stale, there already or missing
	stale := s.DeepCopy()
	stale.ResourceVersion = "1"
	_, err = k.Services("guest").Update(ctx, stale, metav1.UpdateOptions{})
	if !apierrors.IsConflict(err) {
		t.Errorf("a stale update is answered %v", err)
	}
	_, err = k.Services("guest").Create(ctx, service("hello", "x"), metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		t.Errorf("a second creation is answered %v", err)
	}
	_, err = k.Services("guest").Get(ctx, "none", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("a missing service is answered %v", err)
	}

	foreground := metav1.DeletePropagationForeground
	err = k.Services("guest").Delete(ctx, "hello",
		metav1.DeleteOptions{PropagationPolicy: &foreground})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		_, err := k.Services("guest").Get(ctx, "hello", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	left, err := k.Revisions("guest").List(ctx, metav1.ListOptions{})
	if err != nil || len(left.Items) > 0 { // a service goes after what it owns
		t.Errorf("%d revisions are left, %v", len(left.Items), err)
	}
	if code, _ := k.curl(s.Status.URL.String()); code != 404 {
		t.Errorf("a service that is gone answers %d", code)
	}
	eventually(t, func() bool { return k.sandboxes() == 0 })
}

// A hundred services get their first request at once: each is answered, by one sandbox.
func TestServicesStartFromZero(t *testing.T) {
	k := newKnative(t)
	const n = 100
	urls := make([]string, n)
	for i := range urls {
		s := k.create(fromZero(service(fmt.Sprintf("cold-%d", i), "example.com/cold")))
		if !s.IsReady() {
			t.Fatalf("%+v", s.Status)
		}
		urls[i] = s.Status.URL.String()
	}
	if got := k.sandboxes(); got != 0 {
		t.Fatalf("%d sandboxes before any request", got)
	}
	var all sync.WaitGroup
	for _, url := range urls {
		all.Go(func() {
			if code, body := k.curl(url); code != 200 {
				t.Errorf("%s: %d %s", url, code, body)
			}
		})
	}
	all.Wait()
	if got := k.sandboxes(); got != n {
		t.Errorf("%d sandboxes for %d services", got, n)
	}
}

// containerConcurrency bounds how many requests a sandbox has at once, whatever wants one.
func TestContainerConcurrencyCountsSandboxes(t *testing.T) {
	k := newKnative(t)
	const requests = 7
	for cc, want := range map[int64]int{0: 1, 1: 7, 3: 3} {
		s := fromZero(service(fmt.Sprintf("cc-%d", cc), "example.com/cc"))
		s.Spec.Template.Spec.ContainerConcurrency = ptr.To(cc)
		s.Spec.Template.Annotations["autoscaling.knative.dev/target-utilization-percentage"] = "100"
		url := k.create(s).Status.URL.String()
		before := k.sandboxes()
		var all sync.WaitGroup
		for range requests {
			all.Go(func() {
				if code, body := k.curl(url + "/?sleep=3s"); code != 200 {
					t.Errorf("%d %s", code, body)
				}
			})
		}
		all.Wait()
		if got := k.sandboxes() - before; got > want || cc != 1 && got != want {
			t.Errorf("containerConcurrency %d: %d sandboxes for %d requests, want %d",
				cc, got, requests, want)
		}
	}
}

// A killed node comes back with its services and their traffic. It needs nothing of what it knew:
// a status of the last moment is found out again.
func TestServicesOutliveTheNode(t *testing.T) {
	k := newKnative(t)
	kill := k.again()
	s := k.create(service("stays", "example.com/stays:1"))
	s.Spec.Template.Spec.Containers[0].Image = "example.com/stays:2"
	s.Spec.Traffic = []v1.TrafficTarget{{RevisionName: "stays-00001", Percent: ptr.To[int64](100)}}
	s, err := k.Services("guest").Update(t.Context(), s, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s = k.await(s)
	kill()
	k.up()
	now, err := k.Services("guest").Get(t.Context(), "stays", metav1.GetOptions{})
	if err != nil || now.UID != s.UID || now.Generation != s.Generation {
		t.Fatalf("%+v %v", now, err)
	}
	if !now.IsReady() { // whatever came before is in it, so it may be watched from there
		now = k.await(now)
	}
	if now.Status.Traffic[0].RevisionName != "stays-00001" {
		t.Errorf("%+v", now.Status)
	}
	if code, body := k.curl(now.Status.URL.String()); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	// events of the former process are not known: whoever watched it has to list again
	w, err := k.Services("guest").Watch(t.Context(), metav1.ListOptions{ResourceVersion: "1"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if e := <-w.ResultChan(); e.Type != watching.Error || !apierrors.IsResourceExpired(
		apierrors.FromObject(e.Object)) {
		t.Errorf("an old watch gets %+v", e)
	}
}

// again has the node run in a process that the test can kill.
func (k *knative) again() (kill func()) {
	k.t.Helper()
	must(k.t, "down", "--run-dir", k.run())
	return k.up()
}

// One user sees nothing of another's.
func TestAUserSeesItsOwnNamespaceAlone(t *testing.T) {
	k := newKnative(t)
	k.create(service("secret", "example.com/secret"))
	key := strings.TrimSpace(must(t, "user", "create", "ann", "--run-dir", k.run(),
		"--state-dir", k.dir))
	ann := clients.NewForConfigOrDie(k.as(key))
	ctx := t.Context()
	k.sees(k.as(key))
	all, err := ann.Services("").List(ctx, metav1.ListOptions{})
	if err != nil || len(all.Items) != 0 {
		t.Errorf("the list of all: %+v %v", all, err)
	}
	nobody := rest.CopyConfig(k.config)
	nobody.BearerToken += "x"
	_, err = clients.NewForConfigOrDie(nobody).Services("guest").List(ctx, metav1.ListOptions{})
	if !apierrors.IsUnauthorized(err) {
		t.Errorf("a wrong key is answered %v", err)
	}
}

// sees has a user try every verb on all that is served, in the namespace guest, which is another's.
func (k *knative) sees(user *rest.Config) {
	k.t.Helper()
	t, ctx := k.t, k.t.Context()
	guest, other := dynamic.NewForConfigOrDie(k.config), dynamic.NewForConfigOrDie(user)
	of := func(kind, version, spec string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		if err := o.UnmarshalJSON([]byte(fmt.Sprintf(`{"kind":%q,"apiVersion":%q,"metadata":{
			"name":"secret.example.com"}%s}`, kind, version, spec))); err != nil {
			t.Fatal(err)
		}
		return o
	}
	for plural, o := range map[string]*unstructured.Unstructured{
		"secrets":    of("Secret", "v1", `,"stringData":{"k":"example.com"}`),
		"configmaps": of("ConfigMap", "v1", `,"data":{"k":"example.com"}`),
		"domainmappings": of("DomainMapping", "serving.knative.dev/v1beta1", `,"spec":{"ref":{
			"kind":"Service","apiVersion":"serving.knative.dev/v1","name":"secret"}}`),
	} {
		to := guest.Resource(o.GroupVersionKind().GroupVersion().WithResource(plural))
		if _, err := to.Namespace("guest").Create(ctx, o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	_, lists, err := discovery.NewDiscoveryClientForConfigOrDie(user).ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, list := range lists {
		version, _ := schema.ParseGroupVersion(list.GroupVersion)
		for _, r := range list.APIResources {
			if !r.Namespaced {
				continue
			}
			all := guest.Resource(version.WithResource(r.Name)).Namespace("guest")
			there, err := all.List(ctx, metav1.ListOptions{})
			if err != nil || len(there.Items) == 0 {
				t.Fatalf("guest has no %s: %v", r.Name, err)
			}
			one := there.Items[0].GetName()
			to := other.Resource(version.WithResource(r.Name)).Namespace("guest")
			o := of(r.Kind, list.GroupVersion, "")
			o.SetName(one)
			_, get := to.Get(ctx, one, metav1.GetOptions{})
			_, listed := to.List(ctx, metav1.ListOptions{})
			_, watch := to.Watch(ctx, metav1.ListOptions{})
			_, create := to.Create(ctx, o, metav1.CreateOptions{})
			_, update := to.Update(ctx, o, metav1.UpdateOptions{})
			_, patch := to.Patch(ctx, one, types.MergePatchType, []byte("{}"),
				metav1.PatchOptions{})
			answers := map[string]error{"get": get, "list": listed, "watch": watch,
				"create": create, "update": update, "patch": patch,
				"delete": to.Delete(ctx, one, metav1.DeleteOptions{}),
				"deletecollection": to.DeleteCollection(ctx, metav1.DeleteOptions{},
					metav1.ListOptions{}),
			}
			if r.Name == "pods" {
				_, answers["log"] = to.Get(ctx, one, metav1.GetOptions{}, "log")
			}
			for verb, err := range answers {
				tried++
				if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "example.com/") {
					t.Errorf("%s %s is answered %v", verb, r.Name, err)
				}
			}
			k.seesNone(other.Resource(version.WithResource(r.Name)), r.Name)
		}
	}
	t.Logf("%d verbs on another's objects: 403", tried)
	if tried < 10*8 {
		t.Errorf("only %d verbs were tried", tried)
	}
}

// seesNone checks that lists and watches of all namespaces have nothing of another's.
func (k *knative) seesNone(all dynamic.ResourceInterface, name string) {
	k.t.Helper()
	list, err := all.List(k.t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		k.t.Errorf("the list of all %s: %+v %v", name, list, err)
	}
	w, err := all.Watch(k.t.Context(), metav1.ListOptions{TimeoutSeconds: ptr.To[int64](1)})
	if err != nil {
		k.t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		k.t.Errorf("a watch of all %s brings %+v", name, e)
	}
}

// Discovery has both of its forms, and schemas for kubectl's apply and explain.
func TestClientsDiscoverTheAPI(t *testing.T) {
	k := newKnative(t)
	for _, legacy := range []bool{false, true} {
		d := discovery.NewDiscoveryClientForConfigOrDie(k.config)
		d.UseLegacyDiscovery = legacy
		_, lists, err := d.ServerGroupsAndResources()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, list := range lists {
			for _, r := range list.APIResources {
				names = append(names, r.Name+r.Kind+strings.Join(r.ShortNames, ","))
			}
		}
		for _, want := range []string{"servicesServicekservice,ksvc", "revisionsRevisionrev",
			"configurationsConfigurationconfig,cfg", "routesRoutert",
			"domainmappingsDomainMappingdm", "secretsSecret", "configmapsConfigMapcm",
			"podsPodpo", "servicesServicesvc", "eventsEventev"} {
			if !slices.Contains(names, want) {
				t.Errorf("legacy %v: %q has no %s", legacy, names, want)
			}
		}
	}
	d := discovery.NewDiscoveryClientForConfigOrDie(k.config)
	doc, err := d.OpenAPISchema()
	if err != nil || len(doc.GetDefinitions().GetAdditionalProperties()) != 10 {
		t.Errorf("OpenAPI v2: %v", err)
	}
	paths, err := d.OpenAPIV3().Paths()
	if err != nil {
		t.Fatal(err)
	}
	schema, err := paths["apis/serving.knative.dev/v1"].Schema("application/json")
	if err != nil || !strings.Contains(string(schema), "containerConcurrency") {
		t.Errorf("OpenAPI v3: %v", err)
	}
}

func port(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}
