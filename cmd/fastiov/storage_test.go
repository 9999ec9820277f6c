package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/functions"
	"github.com/fastiov/fastiov/functions/inputs"
)

// TestOpenWhiskClientDeploysTheSamples: the manifests of the sample functions, deployed by wsk, are the actions that they say.
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
	manifests, err := filepath.Glob("../../functions/*/manifest.yaml")
	if err != nil || len(manifests) == 0 {
		t.Fatalf("%v, %v", manifests, err)
	}
	for _, manifest := range manifests {
		run("project", "deploy", "--manifest", manifest)
	}
	for _, f := range functions.All("http://10.0.2.2:3234") {
		_, said, _ := strings.Cut(string(run("action", "get", f.Name)), "\n") // a line for people, then JSON
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
		if got.Exec.Kind != f.Kind || got.Limits.Memory != f.MemoryMB || got.Limits.Timeout != f.TimeoutMs || len(got.Parameters) != len(f.Parameters) {
			t.Errorf("%s is %+v, want %+v", f.Name, got, f)
		}
	}
}

// TestTheSamplesCanBeFetched: `up --storage` serves what `storage samples` put there.
func TestTheSamplesCanBeFetched(t *testing.T) {
	if testing.Short() {
		t.Skip("makes the weights of a network")
	}
	dir := t.TempDir()
	run, at := filepath.Join(dir, "run"), listenLater(t)
	must(t, "up", "--sandbox", "sim", "--run-dir", run, "--state-dir", dir, "--listen", "127.0.0.1:0", "--metrics", "", "--storage", at)
	t.Cleanup(func() { _ = fastiov(t, "down", "--run-dir", run).Run() })
	said := must(t, "storage", "samples", "http://"+at)
	for _, key := range inputs.Keys {
		if !strings.Contains(said, key) {
			t.Errorf("samples said %q, nothing of %s", said, key)
		}
		resp, err := http.Get("http://" + at + "/" + key)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || len(content) < 1000 {
			t.Errorf("%s: %s, %d bytes, %v", key, resp.Status, len(content), err)
		}
	}
}
