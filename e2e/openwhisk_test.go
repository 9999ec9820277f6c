//go:build openwhisk

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/functions"
)

// TestOpenWhiskClient runs all commands of OpenWhisk's own client: wsk or, without it, Apache's
// JavaScript client in the folder that FASTIOV_TEST_OPENWHISK_JS names.
// `make test ONLY=full/openwhisk` finds one of them.
func TestOpenWhiskClient(t *testing.T) {
	if wsk := findWsk(); wsk != "" {
		runWsk(t, wsk)
		return
	}
	folder := os.Getenv("FASTIOV_TEST_OPENWHISK_JS")
	if folder == "" {
		t.Fatal("no wsk on PATH, and no JavaScript client: run make test ONLY=full/openwhisk")
	}
	url, secureURL, key, _ := endpoint(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	client := exec.CommandContext(ctx, "node", "client.js")
	client.Dir = folder
	client.Env = append(os.Environ(), "APIHOST="+url, "APIHOST_HTTPS="+secureURL, "AUTH="+key)
	out, err := client.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}

func findWsk() string {
	if wsk := os.Getenv("WSK"); wsk != "" {
		return wsk
	}
	wsk, err := exec.LookPath("wsk")
	if err != nil {
		return ""
	}
	return wsk
}

// The exit code of wsk is the HTTP status in one byte.
func rc(status int) int { return status & 0xff }

// runWsk runs the commands in order. Each has its arguments, its exit code and its expected output.
func runWsk(t *testing.T, wsk string) {
	url, secureURL, key, flags := endpoint(t)
	dir := t.TempDir()
	for name, content := range map[string]string{
		".wskprops": "APIHOST=" + url + "\nAUTH=" + key +
			"\n", "hello.py": "def main(args): return args\n", "a.zip": "PK\x03\x04",
		"many.json": `{"x":"` + strings.Repeat("x", 1<<20) + `"}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bob := strings.TrimSpace(must(t,
		append([]string{"user", "create", "bob", "--invocations-per-minute", "1"}, flags...)...))
	run := func(args ...string) (string, int) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, wsk, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "WSK_CONFIG_FILE="+filepath.Join(dir, ".wskprops"), "HOME="+
			dir)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatalf("wsk %s: %v", strings.Join(args, " "), err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	for _, c := range wskCommands(secureURL, bob) {
		out, code := run(strings.Split(c.args, " ")...)
		for tries := 0; c.soon && tries < 100 && !strings.Contains(out, c.says); tries++ {
			time.Sleep(50 * time.Millisecond) // wsk offers no way to wait
			out, code = run(strings.Split(c.args, " ")...)
		}
		if code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("wsk %s: exit code %d, want %d; it should say %q:\n%.2000s", c.args, code,
				c.code, c.says, out)
		}
	}
	for secret, status := range map[string]int{"secret": 200, "another": 401} {
		request, err := http.NewRequest("GET", url+"/api/v1/web/guest/default/page.json/a/path?b=2",
			nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Require-Whisk-Auth", secret)
		got, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(got.Body)
		got.Body.Close()
		if err != nil || got.StatusCode != status ||
			status == 200 && !strings.Contains(string(body), `"__ow_path":"/a/path","b":"2"`) {
			t.Errorf("the page: HTTP %d %s, %v; want %d", got.StatusCode, body, err, status)
		}
	}
	if saved, err := os.ReadFile(filepath.Join(dir, "saved.py")); err != nil ||
		string(saved) != "def main(args): return args\n" {
		t.Errorf("what was saved: %q, %v", saved, err)
	}
}

type wskCommand struct {
	args string
	code int
	says string
	soon bool // the output is expected after a while
}

func wskCommands(secureURL, bob string) []wskCommand {
	limited := fmt.Sprintf("--auth %s ", bob)
	return []wskCommand{
		{args: "property get", says: "whisk API build"},
		{args: "namespace list", says: "guest"},
		{args: "action create hello hello.py", says: "ok: created action hello"},
		{args: "action create hello hello.py", code: rc(409), says: "exists already"},
		{args: "action update hello -p a 1 -a note x -m 128 -t 5000 -l 1", says: "ok: updated action hello"},
		{args: "action get hello", says: `"version": "0.0.2"`},
		{args: "action get hello --summary", says: "/guest/hello"},
		{args: "action get hello --url", says: "/api/v1/namespaces/guest/actions/hello"},
		{args: "action get hello limits", says: `"memory": 128`},
		{args: "action get hello --save-as saved.py", says: "ok: saved action code"},
		{args: "action update hello --del-annotation note", says: "ok: updated"},
		{args: "action create copied --copy hello", says: "ok: created"},
		{args: "action create zipped a.zip --kind nodejs:default --main go", says: "ok: created"},
		{args: "action get zipped exec", says: `"binary": true`},
		{args: "action create boxed --docker someone/image", says: "ok: created"},
		{args: "action create native hello.py --native", says: "ok: created"},
		{args: "action create chain --sequence hello,copied", says: "ok: created"},
		{args: "action create chained --sequence chain,hello", says: "ok: created"},
		{args: "action create broken --sequence hello,nothing", code: rc(400), says: "missing"},
		{args: "action update chain --sequence chained", code: rc(400), says: "contain itself"},
		{args: "action invoke chained -r -p b 2", says: "{\n    \"a\": 1,\n    \"b\": 2\n}"},
		{args: "action invoke chained -b -p error no", code: rc(502), says: `"topmost"`},
		{args: "activation list chained", says: "sequence"},
		{args: "action create conduct hello.py -a conductor true", says: "ok: created"},
		{args: "action invoke conduct -r -p action hello", says: "{\n    \"a\": 1\n}"},
		{args: "action invoke conduct -b -p action hello", says: `"conductor"`},
		{args: "action create page hello.py --web true --web-secure secret", says: "ok: created"},
		{args: "action create rawpage hello.py --web raw", says: "ok: created"},
		{args: "action get page --url", says: "/api/v1/web/guest/default/page"},
		{args: "action create bad hello.py -m 4096", code: rc(400), says: "limits.memory"},
		{args: "action list", says: "/guest/hello"},
		{args: "action list --limit 1 --skip 1 --name-sort", says: "actions"},
		{args: "action invoke hello", says: "ok: invoked /_/hello with id"},
		{args: "action invoke hello -b -p b 2", says: `"success": true`},
		{args: "action invoke /guest/hello -r -p b 2", says: "{\n    \"a\": 1,\n    \"b\": 2\n}"},
		{args: "action invoke hello -b -p error no", code: rc(502), says: "application error"},
		{args: "action invoke hello -r -p fail true", code: rc(502), says: "asked for a failure"},
		{args: "action invoke hello -P many.json", code: rc(413), says: "at most"},
		{args: "action invoke nothing", code: rc(404), says: "there is no action"},
		{args: "action delete zipped", says: "ok: deleted"},
		{args: "action delete zipped", code: rc(404), says: "there is no action"},

		{args: "activation list", says: "guest/hello:0.0.3"},
		{args: "activation list hello --limit 2 --skip 1", says: "success"},
		{args: "activation list --full", says: `"status": "application error"`},
		{args: "activation list --since 9000000000000", says: ""},
		{args: "activation get --last", says: `"name": "hello"`},
		{args: "activation logs --last", says: "stdout: sim: answered"},
		{args: "activation result --last", says: "asked for a failure"},
		{args: "activation get 00112233445566778899aabbccddeeff", code: rc(404), says: "there is no activation"},
		{args: "activation poll --exit 1 --since-minutes 1", says: "Activation: "},

		{args: "package create pk -p p 1 --shared yes", says: "ok: created package pk"},
		{args: "action create pk/inner hello.py", says: "ok: created action pk/inner"},
		{args: "action list pk", says: "/guest/pk/inner"},
		{args: "package bind /guest/pk mine -p q 2", says: "ok: created binding mine"},
		{args: "action invoke mine/inner -r", says: "{\n    \"p\": 1,\n    \"q\": 2\n}"},
		{args: "activation list pk/inner", says: "guest/inner:0.0.1"},
		{args: "package get mine", says: `"name": "inner"`},
		{args: "package get pk --summary", says: "/guest/pk/inner"},
		{args: "package update pk -p p 3", says: "ok: updated package pk"},
		{args: "package list", says: "shared"},
		{args: "package refresh", says: "refreshed successfully"},
		{args: "package delete pk", code: rc(409), says: "not empty"},
		{args: "package delete mine", says: "ok: deleted"},

		{args: "trigger create t -p t 1", says: "ok: created trigger t"},
		{args: "trigger fire t", says: "ok: triggered /_/t with id"},
		{args: "rule create r t hello", says: "ok: created rule r"},
		{args: "rule create r t hello", code: rc(409), says: "exists already"},
		{args: "rule create s t nothing", code: rc(400), says: "there is no action"},
		{args: "rule list", says: "active"},
		{args: "rule get r", says: `"status": "active"`},
		{args: "rule get r --summary", says: "/guest/r"},
		{args: "trigger get t", says: `"guest/r"`},
		{args: "trigger fire t -p fired yes", says: "ok: triggered /_/t with id"},
		{args: "activation list t", says: "guest/t:0.0.1"},
		{args: "activation result --last", says: `"fired": "yes"`, soon: true},
		{args: "rule disable r", says: "ok: disabled rule r"},
		{args: "rule status r", says: "inactive"},
		{args: "rule enable r", says: "ok: enabled rule r"},
		{args: "rule update r t copied", says: "ok: updated rule r"},
		{args: "trigger update t -p t 2", says: "ok: updated trigger t"},
		{args: "trigger list", says: "/guest/t"},
		{args: "rule delete r", says: "ok: deleted rule r"},
		{args: "trigger delete t", says: "ok: deleted trigger t"},
		{args: "trigger create fed --feed hello -p every day", says: "ok: created trigger fed"},
		{args: "activation result --last", says: `"lifecycleEvent": "CREATE"`},
		{args: "trigger delete fed", says: "ok: deleted trigger fed"},
		{args: "trigger create fed --feed nothing", code: rc(404), says: "nothing"},
		{args: "trigger get fed", code: rc(404), says: "there is no trigger"},

		{args: "list", says: "/guest/pk"},
		{args: "namespace get", says: "/guest/hello"},
		{args: "-i --apihost " + secureURL + " action list", says: "/guest/hello"},
		{args: limited + "list", says: "Entities"},
		{args: limited + "action invoke /guest/pk/inner -r", says: `"p": 3`},
		{args: limited + "action invoke /guest/pk/inner -r", code: rc(429), says: "too many requests"},
		{args: limited + "action get /guest/hello", code: rc(403), says: "not authorized"},
		{args: "--auth a:b list", code: rc(401), says: "authentication is invalid"},
		{args: "api list", code: 1, says: "there is no web action"},
		{args: "sdk install docker", code: 1, says: "failed"},
	}
}

// The manifests of the sample functions, deployed by wsk, become the actions that they describe.
func TestOpenWhiskClientDeploysTheSamples(t *testing.T) {
	wsk := findWsk()
	if wsk == "" {
		t.Skip("no wsk on PATH: set WSK to one")
	}
	url, _, key, _ := endpoint(t)
	props := filepath.Join(t.TempDir(), "wskprops")
	if err := os.WriteFile(props, []byte("APIHOST="+url+"\nAUTH="+key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) []byte {
		cmd := exec.CommandContext(t.Context(), wsk, args...)
		cmd.Env = append(os.Environ(), "WSK_CONFIG_FILE="+props, "STORAGE=http://10.0.2.2:3234")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("wsk %v: %v\n%s", args, err, out)
		}
		return out
	}
	manifests, err := filepath.Glob("../functions/*/manifest.yaml")
	if err != nil || len(manifests) == 0 {
		t.Fatalf("%v, %v", manifests, err)
	}
	for _, manifest := range manifests {
		run("project", "deploy", "--manifest", manifest)
	}
	for _, f := range functions.All("http://10.0.2.2:3234") {
		// a line for people, then JSON
		_, said, _ := strings.Cut(string(run("action", "get", f.Name)), "\n")
		var got struct {
			Exec       struct{ Kind string }
			Limits     struct{ Memory, Timeout int }
			Parameters []struct{ Key, Value string }
		}
		if err := json.Unmarshal([]byte(said), &got); err != nil {
			t.Fatalf("%s: %v", said, err)
		}
		for _, p := range got.Parameters {
			if f.Parameters[p.Key] != p.Value {
				t.Errorf("%s: %s is %q, want %q", f.Name, p.Key, p.Value, f.Parameters[p.Key])
			}
		}
		if got.Exec.Kind != f.Kind || got.Limits.Memory != f.MemoryMB ||
			got.Limits.Timeout != f.TimeoutMs || len(got.Parameters) != len(f.Parameters) {
			t.Errorf("%s is %+v, want %+v", f.Name, got, f)
		}
	}
}
