//go:build conformance

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
)

// Knative's own tests of its API and of what a container finds pass, with its own programs in
// containers of runc.
func TestKnativesConformance(t *testing.T) {
	built := os.Getenv("FASTIOV_TEST_CONFORMANCE")
	if built == "" {
		t.Skip("Knative's tests are not built: run make test ONLY=full/knative-conformance")
	}
	inNetwork(t, func() {
		hub := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
		t.Cleanup(hub.Close)
		repository := strings.TrimPrefix(hub.URL, "http://") + "/knative"
		pushPrograms(t, filepath.Join(built, "images"), repository)
		config := conformingNode(t, hub.URL)
		for _, part := range []string{"api", "runtime"} {
			t.Run(part, func(t *testing.T) {
				conforms(t, filepath.Join(built, part+".test"), "-kubeconfig", config,
					"-dockerrepo", repository)
			})
		}
	})
}

// conforms runs a binary of Knative's tests and checks that all of them pass.
func conforms(t *testing.T, binary string, flags ...string) {
	cmd := exec.CommandContext(t.Context(), binary, append(flags, "-test.v",
		"-test.timeout", "40m", "-test.parallel", "4", "-test.run", os.Getenv("FASTIOV_TEST_ONLY"),
		"-test-namespace", "guest", "-disable-logstream", "-enable-beta",
		"-ingressendpoint", "127.0.0.1")...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "SYSTEM_NAMESPACE=guest",
		"GATEWAY_NAMESPACE_OVERRIDE=guest", "GATEWAY_OVERRIDE="+gateway)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&said, t.Output()), t.Output()
	ended := cmd.Run()
	verdicts := regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): (\w+)`)
	all := map[string][]string{}
	for _, v := range verdicts.FindAllStringSubmatch(said.String(), -1) {
		all[v[1]] = append(all[v[1]], v[2])
	}
	t.Logf("%d of Knative's tests pass", len(all["PASS"]))
	for _, name := range slices.Concat(all["FAIL"], all["SKIP"]) {
		t.Errorf("%s does not pass", name)
	}
	if ended != nil || len(all["PASS"]) == 0 {
		t.Errorf("Knative's tests end: %v", ended)
	}
}

// gateway is a service whose name Knative's client looks up before it goes to the address that it
// is told; its answer says nothing more.
const gateway = "gateway"

// conformingNode runs a node with what Knative's tests expect in their namespace, and returns the
// file by which they reach it.
func conformingNode(t *testing.T, hub string) (kubeconfig string) {
	dir := shortDir(t)
	run, state := filepath.Join(dir, "run"), filepath.Join(dir, "state")
	t.Cleanup(func() { nothingOf(t, run) })
	downAfter(t, run)
	must(t, "up", "--sandbox", "containerd", "--metrics", "", "--image-registries", hub,
		"--run-dir", run, "--state-dir", state)
	text := must(t, "kubeconfig", "--run-dir", run, "--state-dir", state)
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	client := dynamic.NewForConfigOrDie(config)
	core, serving := schema.GroupVersion{Version: "v1"},
		schema.GroupVersion{Group: "serving.knative.dev", Version: "v1"}
	for _, o := range []struct {
		of       schema.GroupVersion
		resource string
		object   map[string]any
	}{
		{core, "configmaps", map[string]any{"kind": "ConfigMap",
			"metadata": map[string]any{"name": "conformance-test-configmap"},
			"data":     map[string]any{"testKey": "testValue"}}},
		{core, "secrets", map[string]any{"kind": "Secret",
			"metadata":   map[string]any{"name": "conformance-test-secret"},
			"stringData": map[string]any{"testKey": "testValue"}}},
		{serving, "services", map[string]any{"kind": "Service",
			"metadata": map[string]any{"name": gateway},
			"spec": map[string]any{"template": map[string]any{
				"metadata": map[string]any{"annotations": map[string]any{
					"autoscaling.knative.dev/initial-scale": "0"}},
				"spec": map[string]any{"containers": []any{map[string]any{"image": "none"}}}}}}},
	} {
		o.object["apiVersion"] = o.of.String()
		if _, err := client.Resource(o.of.WithResource(o.resource)).Namespace("guest").Create(
			t.Context(), &unstructured.Unstructured{Object: o.object},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return fileOf(t, text)
}

// pushPrograms makes images of Knative's test programs as its own builder does: a program in
// /ko-app, for a user that is not root.
func pushPrograms(t *testing.T, dir, repository string) {
	base, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	folders := layer(t, nil, tar.Header{Name: "tmp/", Mode: 0o1777},
		tar.Header{Name: "home/", Mode: 0o755},
		tar.Header{Name: "home/nonroot/", Mode: 0o700, Uid: 65532, Gid: 65532},
		tar.Header{Name: "ko-app/", Mode: 0o755})
	programs, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		program, err := os.ReadFile(filepath.Join(dir, p.Name()))
		if err != nil {
			t.Fatal(err)
		}
		at := "ko-app/" + p.Name()
		made, err := mutate.AppendLayers(base, folders,
			layer(t, program, tar.Header{Name: at, Mode: 0o755}))
		if err == nil {
			made, err = mutate.Config(made, v1.Config{Entrypoint: []string{"/" + at},
				User: "65532", WorkingDir: "/home/nonroot",
				Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin:/ko-app"}})
		}
		if err == nil {
			err = crane.Push(made, repository+"/"+p.Name()+":latest")
		}
		if err != nil {
			t.Fatalf("the image of %s: %v", p.Name(), err)
		}
	}
}

// layer returns a layer of folders and files, each of which has that content.
func layer(t *testing.T, content []byte, entries ...tar.Header) v1.Layer {
	t.Helper()
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name, "/") {
			e.Size = int64(len(content))
		}
		err := w.WriteHeader(&e)
		if err == nil && e.Size > 0 {
			_, err = w.Write(content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	made, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(text.Bytes())), nil
	}, tarball.WithCompressionLevel(gzip.NoCompression)) // what is here in a moment and gone again
	if err != nil {
		t.Fatal(err)
	}
	return made
}
