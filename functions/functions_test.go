package functions_test

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/fastiov/fastiov/functions"
	"github.com/fastiov/fastiov/functions/functionstest"
	"github.com/fastiov/fastiov/functions/inputs"
)

// TestFunctions runs every sample function on this machine, behind the proxy of its sandbox and
// with a storage server, and checks the stored result in another way.
func TestFunctions(t *testing.T) {
	if testing.Short() {
		t.Skip("computes for some seconds")
	}
	port := functionstest.Storage(t)
	for _, f := range functions.All("http://127.0.0.1:" + port) {
		t.Run(f.Name, func(t *testing.T) {
			result := functionstest.Native(t, f)
			var stored []byte
			if output := f.Parameters["output"]; output != "" {
				stored = functionstest.Get(t, port, output)
			}
			functionstest.Check(t, f, result, stored)
			functionstest.CheckSame(t, f, stored, stored)
			t.Logf("%v", result["ms"])
		})
	}
}

// The same program runs a network of ResNet-50's form, here with few channels.
func TestInferenceReadsTheNetworkOffItsWeights(t *testing.T) {
	if testing.Short() {
		t.Skip("computes for some seconds")
	}
	port := functionstest.Storage(t)
	for _, c := range []struct {
		name   string
		stages []int
		deep   bool
	}{{"ResNet-50", []int{3, 4, 6, 3}, true}, {"ResNet-18", []int{2, 2, 2, 2}, false}} {
		t.Run(c.name, func(t *testing.T) {
			network := inputs.Residual("", c.stages, 4, c.deep, rand.New(rand.NewPCG(1, 2)))
			functionstest.Put(t, port, "weights/"+c.name, network.File())
			f := named(t, "inference", port)
			f.Parameters["weights"] = "weights/" + c.name
			if result := functionstest.Native(t, f); result["network"] != c.name {
				t.Errorf("%v", result)
			}
			functionstest.CheckScores(t, network,
				functionstest.Get(t, port, f.Parameters["output"]))
		})
	}
}

func named(t *testing.T, name, port string) functions.Function {
	t.Helper()
	for _, f := range functions.All("http://127.0.0.1:" + port) {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("there is no function %s", name)
	return functions.Function{}
}

// An error names the missing parameter or object.
func TestFunctionsSayWhatIsWrong(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process for each")
	}
	port := functionstest.Storage(t)
	for _, f := range functions.All("http://127.0.0.1:" + port) {
		if f.Parameters["storage"] == "" {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			f.Parameters["input"] = "samples/nothing"
			if why := functionstest.NativeError(t, f); !strings.Contains(why, "samples/nothing") ||
				!strings.Contains(why, "404") {
				t.Errorf("of an object that is not there it says %q", why)
			}
			delete(f.Parameters, "storage")
			if why := functionstest.NativeError(t, f); !strings.Contains(why, "storage") ||
				!strings.Contains(why, "needed") {
				t.Errorf("without storage it says %q", why)
			}
		})
	}
}

// Each function's service.yaml names its image, and the same memory and arguments as the manifest
// for wsk. The function answers behind the server in that image.
func TestKnativeServices(t *testing.T) {
	services, err := filepath.Glob("*/service.yaml")
	if err != nil || len(services) != 6 {
		t.Fatalf("%v, %v", services, err)
	}
	for _, file := range services {
		name := filepath.Dir(file)
		t.Run(name, func(t *testing.T) {
			f := named(t, name, "1")
			var service service
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			decoder := yaml.NewDecoder(bytes.NewReader(content))
			decoder.KnownFields(true)
			if err := decoder.Decode(&service); err != nil {
				t.Fatal(err)
			}
			spec := service.Spec.Template.Spec
			if service.APIVersion != "serving.knative.dev/v1" || service.Kind != "Service" ||
				service.Metadata.Name != name || len(spec.Containers) != 1 ||
				spec.TimeoutSeconds*1000 != f.TimeoutMs || spec.ContainerConcurrency != 1 {
				t.Fatalf("%+v", service)
			}
			container := spec.Containers[0]
			if s := container.Security; s.Escalates || !s.NonRoot ||
				len(s.Capabilities.Drop) != 1 || s.Seccomp.Type != "RuntimeDefault" {
				t.Errorf("%+v", s)
			}
			var arguments map[string]string
			if len(container.Env) != 1 || container.Env[0].Name != "ARGUMENTS" ||
				json.Unmarshal([]byte(container.Env[0].Value), &arguments) != nil {
				t.Fatalf("%+v", container)
			}
			if container.Image != "localhost:5000/fastiov/"+name+":1" ||
				container.Resources.Limits["memory"] != memory(f.MemoryMB) ||
				len(arguments) != len(f.Parameters) {
				t.Errorf("%+v, and wsk's is %+v", container, f)
			}
			for parameter, value := range arguments {
				if parameter != "storage" && f.Parameters[parameter] != value {
					t.Errorf("%s is %q, and wsk's %q", parameter, value, f.Parameters[parameter])
				}
			}
		})
	}
}

func memory(mb int) string { return map[int]string{256: "256Mi", 512: "512Mi"}[mb] }

type service struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Spec       struct {
		Template struct {
			Spec struct {
				ContainerConcurrency int `yaml:"containerConcurrency"`
				TimeoutSeconds       int `yaml:"timeoutSeconds"`
				Containers           []struct {
					Image     string
					Resources struct{ Limits map[string]string }
					Security  struct {
						Escalates    bool `yaml:"allowPrivilegeEscalation"`
						NonRoot      bool `yaml:"runAsNonRoot"`
						Capabilities struct{ Drop []string }
						Seccomp      struct{ Type string } `yaml:"seccompProfile"`
					} `yaml:"securityContext"`
					Env []struct{ Name, Value string }
				}
			}
		}
	}
}

func TestAFunctionBehindKnativesServer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process")
	}
	port := functionstest.Storage(t)
	f := named(t, "scientific", port)
	base := functionstest.Start(t, functionstest.FreePort(t), functionstest.Python(t, false),
		"-I", "-u", "knative/serve.py", "scientific/scientific.py")
	call := func(body string) (int, map[string]any) {
		resp, err := http.Post(base, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		content, err := io.ReadAll(resp.Body)
		var out map[string]any
		if err != nil || json.Unmarshal(content, &out) != nil {
			t.Fatalf("%s, %v", content, err)
		}
		return resp.StatusCode, out
	}
	arguments, err := json.Marshal(f.Parameters)
	if err != nil {
		t.Fatal(err)
	}
	status, result := call(string(arguments))
	if status != http.StatusOK {
		t.Fatalf("%d %v", status, result)
	}
	functionstest.Check(t, f, result, functionstest.Get(t, port, f.Parameters["output"]))
	for _, c := range []struct {
		body   string
		status int
		why    string
	}{{"[]", 400, "JSON object"}, {"{", 400, "JSON object"}, {"{}", 500, "storage"}} {
		if status, result := call(c.body); status != c.status ||
			!strings.Contains(result["error"].(string), c.why) {
			t.Errorf("%s: %d %v", c.body, status, result)
		}
	}
	resp, err := http.Get(base)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", resp, err)
	}
	resp.Body.Close()
}
