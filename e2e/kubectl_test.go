//go:build knative

package e2e

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"knative.dev/pkg/apis/duck/v1"
	"knative.dev/serving/pkg/apis/serving/v1beta1"
	beta "knative.dev/serving/pkg/client/clientset/versioned/typed/serving/v1beta1"
)

// A client is a program that speaks to a node as its user does.
type client struct {
	*knative
	program string
	env     []string
}

// program returns a program of this machine, or skips the test aloud.
func (k *knative) program(name string) *client {
	k.t.Helper()
	program, err := exec.LookPath(name)
	if err != nil {
		k.t.Skipf("%s is not on PATH: %v", name, err)
	}
	cmd := fastiov(k.t, "kubeconfig", "--run-dir", k.run(), "--state-dir", k.dir)
	text, err := cmd.Output()
	if err != nil {
		k.t.Fatal(err)
	}
	file := filepath.Join(k.dir, "kubeconfig")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		k.t.Fatal(err)
	}
	return &client{k, program, append(os.Environ(), "KUBECONFIG="+file, "HOME="+k.dir)}
}

// A said holds what a program is to be asked, and what it says then.
type said struct {
	args string // words, with FILE for the file that is applied
	want string
}

// says runs a program and looks for what it is to say. One that fails says so with "!" before that.
func (c *client) says(all []said) {
	c.t.Helper()
	for _, s := range all {
		want, fails := strings.CutPrefix(s.want, "!")
		out, err := c.run(s.args)
		if (err != nil) != fails || !strings.Contains(out, want) {
			c.t.Errorf("%s %s: %v, want %q\n%s", filepath.Base(c.program), s.args, err, s.want, out)
		}
		c.t.Logf("%s %s", filepath.Base(c.program), s.args)
	}
}

func (c *client) run(args string) (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.program,
		strings.Fields(strings.ReplaceAll(args, "FILE", c.file()))...)
	cmd.Env = c.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *client) file() string { return filepath.Join(c.dir, "service.yaml") }

func (c *client) write(text string) {
	c.t.Helper()
	if err := os.WriteFile(c.file(), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// follow runs a program until a line of it has all words that are wanted, which do brings about, or
// for a minute.
func (c *client) follow(args, want string, do func()) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.program, strings.Fields(args)...)
	cmd.Env = c.env
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		time.Sleep(time.Second) // it may have begun by then; what it misses it is told first
		do()
	})
	defer done.Wait()
	seen, text := false, ""
	for lines := bufio.NewScanner(out); !seen && lines.Scan(); {
		text += lines.Text() + "\n"
		seen = !slices.ContainsFunc(strings.Fields(want),
			func(word string) bool { return !strings.Contains(lines.Text(), word) })
	}
	if !seen {
		c.t.Errorf("%s %s never says %q:\n%s", filepath.Base(c.program), args, want, text)
	}
	cancel()
	_ = cmd.Wait() // it was ended
	c.t.Logf("%s %s", filepath.Base(c.program), args)
}

const described = `apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: hello, labels: {app: hello}}
spec:
  template:
    metadata: {annotations: {autoscaling.knative.dev/min-scale: "1"}}
    spec:
      containers:
      - image: example.com/hello
        env:
        - {name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: token}}}
        envFrom: [{configMapRef: {name: c}}]
        volumeMounts: [{name: v, mountPath: /etc/v, readOnly: true}]
      volumes: [{name: v, secret: {secretName: s}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: d}
data: {k: v}
`

// Every verb of kubectl that a user of services has, by the program itself.
func TestKubectl(t *testing.T) {
	k := newKnative(t)
	c := k.program("kubectl")
	c.write(described)
	c.says([]said{
		{"version", "Server Version: v1."},
		{"api-resources", "domainmappings"},
		{"explain ksvc.spec.template.spec.containers.envFrom", "configMapRef"},
		{"explain secret.stringData", "write-only"},
		{"explain pod.status", "podIP"},
		{"explain domainmapping.spec.ref", "kind"},
		{"create secret generic s --from-literal=token=hush", "secret/s created"},
		{"create configmap c --from-literal=A=1", "configmap/c created"},
		{"apply -f FILE", "service.serving.knative.dev/hello created"},
		{"wait ksvc/hello --for=condition=Ready --timeout=50s", "condition met"},
		{"apply -f FILE", "configmap/d unchanged"},
		{"diff -f FILE", ""},
		{"get ksvc", "True"},
		{"get ksvc hello -o jsonpath={.status.url}", "http://hello.guest."},
		{"get secrets,cm", "configmap/d"},
		{"get pods -o wide", "Running"},
		{"get svc", "ExternalName"},
		{"get all", "pod/hello-00001-deployment-"},
		{"get revisions --chunk-size=1", "hello-00001"},
		{"get cm --chunk-size=1 -o name", "configmap/d"},
		{"get ksvc -l app=hello -o name", "service.serving.knative.dev/hello"},
		{"get events --field-selector involvedObject.kind=Revision", "RevisionReady"},
		{"events --for revision/hello-00001", "RevisionReady"},
		{"describe ksvc hello", "ServiceReady"},
		{"describe pod -l serving.knative.dev/service=hello", "Started container"},
		{"describe secret s", "token:  4 bytes"},
		{"describe cm d", "Data"},
		{"label ksvc hello colour=red", "labeled"},
		{"annotate ksvc hello note=x", "annotated"},
		{"patch cm d -p {\"data\":{\"k\":\"w\"}}", "patched"},
		{"patch ksvc hello --type=merge -p {\"metadata\":{\"labels\":{\"colour\":\"blue\"}}}",
			"patched"},
		{"patch ksvc hello --type=json -p [{\"op\":\"remove\",\"path\":\"/metadata/labels/colour\"}]",
			"patched"},
		{"diff -f FILE", "!+  k: v"},
		{"apply -f FILE", "configmap/d configured"},
		{"apply --server-side --force-conflicts -f FILE", "serverside-applied"},
		{"replace -f FILE", "!annotation value is immutable"}, // as Knative has it
		{"get --raw /openapi/v3", "apis/serving.knative.dev/v1"},
		{"get ksvc none", "!not found"},
		{"create namespace other", "!"},
		{"delete pod --all", "!MethodNotAllowed"},
	})
	url := "http://hello.guest.localhost:" + port(t, k.address)
	if code, env := k.curl(url + "/env"); code != 200 || !strings.Contains(env, `"TOKEN":"hush"`) ||
		!strings.Contains(env, `"A":"1"`) {
		t.Errorf("its variables: %d %s", code, env)
	}
	if code, files := k.curl(url + "/files"); code != 200 ||
		files != `{"/etc/v/token":"hush"}`+"\n" {
		t.Errorf("its files: %d %s", code, files)
	}
	pod, err := c.run("get pods -o name")
	if err != nil {
		t.Fatal(pod)
	}
	pod, _, _ = strings.Cut(pod, "\n")
	c.says([]said{
		{"logs " + pod + " -c user-container", "GET /env answered 200"},
		{"logs " + pod + " --tail=1 --timestamps", "GET /files answered 200"},
		{"logs -l serving.knative.dev/service=hello", "GET /env answered 200"},
		{"logs " + pod + " -c other", "!not valid for pod"},
	})
	c.follow("logs -f "+pod, "GET /followed answered 200", func() { k.curl(url + "/followed") })
	c.follow("get ksvc -w", "hello-00002", func() {
		c.says([]said{{"patch ksvc hello --type=merge -p {\"spec\":{\"template\":{\"metadata\":" +
			"{\"annotations\":{\"a\":\"b\"}}}}}", "patched"}})
	})
	c.follow("get pods -w", "hello-00002 Terminating", func() {
		c.says([]said{{"delete ksvc hello --cascade=foreground", "deleted"}})
	})
	c.says([]said{
		{"get revisions,routes,configurations,pods", "No resources found"},
		{"apply -f FILE", "service.serving.knative.dev/hello created"},
		{"wait ksvc hello --for=condition=Ready", "condition met"},
		{"delete ksvc hello --cascade=orphan", "deleted"},
		{"get route,configuration", "configuration.serving.knative.dev/hello"},
		{"delete route,configuration hello --cascade=background", "deleted"},
		{"wait revision hello-00001 --for=delete", ""},
		{"delete -f FILE --ignore-not-found", "configmap \"d\" deleted"},
		{"delete secret,cm --all", "secret \"s\" deleted"},
	})
	if log := must(t, "status", "--json", "--run-dir", k.run()); strings.Contains(log, "hush") {
		t.Error("the node's status tells a secret")
	}
}

// Every verb of kn for services, revisions, routes and domains: by the program where it is there,
// else the domains by Knative's clientset, which other tests speak to services by.
func TestKn(t *testing.T) {
	k := newKnative(t)
	if _, err := exec.LookPath("kn"); err != nil {
		t.Logf("kn is not on PATH: domains are tried by Knative's clientset")
		k.create(service("hello", "example.com/hello"))
		k.mapByClientset()
		return
	}
	c := k.program("kn")
	c.write(strings.SplitN(described, "---", 2)[0])
	c.says([]said{
		{"version", "Version"},
		{"service create hello --image example.com/hello --env A=1", "available at URL"},
		{"service create hello --image example.com/hello", "!already exists"},
		{"service update hello --env A=2 --tag hello-00001=old --traffic old=20,@latest=80",
			"hello-00002"},
		{"service list", "hello"},
		{"service describe hello", "#old"},
		{"service export hello -o yaml", "kind: Service"},
		{"service wait hello", "ready"},
		{"service apply two --image example.com/two", "available at URL"},
		{"service apply two --image example.com/two", "No changes"},
		{"service delete two", "successfully deleted"},
		{"revision list", "hello-00002"},
		{"revision describe hello-00001", "example.com/hello"},
		{"route list", "hello"},
		{"route describe hello", "hello-00002"},
		{"domain create hello.example.com --ref hello", "created"},
		{"domain list", "hello.example.com"},
		{"domain describe hello.example.com", "DomainClaimed"},
		{"domain update hello.example.com --ref kroute:hello", "updated"},
		{"domain describe hello.example.com", "Route"},
	})
	k.named("hello.example.com", 200)
	c.says([]said{
		{"domain delete hello.example.com", "deleted"},
	})
	trusted := k.secretFor("safe.example.com")
	c.says([]said{
		{"domain create safe.example.com --ref ksvc:hello --tls tls", "created"},
		{"domain describe safe.example.com", "https://safe.example.com"},
	})
	k.safely("safe.example.com", trusted)
	c.says([]said{
		{"service update hello --untag old --traffic @latest=100", "latest revision"},
		{"revision delete hello-00001", "deleted"},
		{"source list", "!"},
		{"service delete hello", "successfully deleted"},
		{"service list", "No services found"},
	})
}

// named sends a request to a name, which leads here.
func (k *knative) named(host string, want int) {
	k.t.Helper()
	client := k.client()
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://" + host + ":" + port(k.t, k.address))
	if err != nil {
		k.t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != want {
		k.t.Errorf("%s answers %s", host, answer.Status)
	}
}

func (k *knative) mapByClientset() {
	k.t.Helper()
	to, ctx := beta.NewForConfigOrDie(k.config).DomainMappings("guest"), k.t.Context()
	m := &v1beta1.DomainMapping{Spec: v1beta1.DomainMappingSpec{Ref: v1.KReference{
		Kind: "Service", APIVersion: "serving.knative.dev/v1", Name: "hello"}}}
	m.Name = "hello.example.com"
	if _, err := to.Create(ctx, m, metav1.CreateOptions{}); err != nil {
		k.t.Fatal(err)
	}
	for late := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		now, err := to.Get(ctx, m.Name, metav1.GetOptions{})
		if err != nil || time.Now().After(late) {
			k.t.Fatalf("%+v %v", now, err)
		}
		if now.IsReady() {
			m = now
			break
		}
	}
	k.named(m.Name, 200)
	m.Spec.Ref.Name = "none"
	if _, err := to.Update(ctx, m, metav1.UpdateOptions{}); err != nil {
		k.t.Error(err)
	}
	if all, err := to.List(ctx, metav1.ListOptions{}); err != nil || len(all.Items) != 1 {
		k.t.Errorf("%+v %v", all, err)
	}
	if err := to.Delete(ctx, m.Name, metav1.DeleteOptions{}); err != nil {
		k.t.Error(err)
	}
	trusted := k.secretFor("safe.example.com")
	safe := &v1beta1.DomainMapping{Spec: *m.Spec.DeepCopy()}
	safe.Name, safe.Spec.Ref.Name = "safe.example.com", "hello"
	safe.Spec.TLS = &v1beta1.SecretTLS{SecretName: "tls"}
	if _, err := to.Create(ctx, safe, metav1.CreateOptions{}); err != nil {
		k.t.Fatal(err)
	}
	k.safely(safe.Name, trusted)
}

// secretFor makes the Secret "tls" with a certificate for a name, and returns that one's file.
func (k *knative) secretFor(host string) (trusted string) {
	k.t.Helper()
	keys, o := selfSigned(k.t, host), &unstructured.Unstructured{}
	data := map[string]any{}
	for key, file := range map[string]string{"tls.crt": keys.Cert, "tls.key": keys.Key} {
		text, err := os.ReadFile(file)
		if err != nil {
			k.t.Fatal(err)
		}
		data[key] = string(text)
	}
	o.SetUnstructuredContent(map[string]any{"kind": "Secret", "apiVersion": "v1",
		"type": "kubernetes.io/tls", "stringData": data})
	o.SetName("tls")
	all := dynamic.NewForConfigOrDie(k.config).Resource(schema.GroupVersionResource{
		Version: "v1", Resource: "secrets"}).Namespace("guest")
	if _, err := all.Create(k.t.Context(), o, metav1.CreateOptions{}); err != nil {
		k.t.Fatal(err)
	}
	return keys.Cert
}

// safely has curl, which trusts one certificate alone, get the page of a name as soon as its
// mapping is ready.
func (k *knative) safely(host, trusted string) {
	k.t.Helper()
	for late := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		out, err := exec.CommandContext(k.t.Context(), "curl", "-sSf", "--cacert", trusted,
			"--connect-to", "::"+k.address, "https://"+host+"/").CombinedOutput()
		if err == nil && strings.HasPrefix(string(out), "sim: GET / of ") {
			return
		}
		if time.Now().After(late) {
			k.t.Fatalf("curl: %v %s", err, out)
		}
	}
}
