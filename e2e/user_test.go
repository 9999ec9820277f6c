package e2e

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/invoker/access"
)

// opens asks the endpoint to whom a key belongs. The status is 200 if the key is valid.
func opens(t *testing.T, address, key string) (status int, namespaces []string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+address+"/api/v1/namespaces", nil)
	if err != nil {
		t.Fatal(err)
	}
	uuid, secret, _ := strings.Cut(key, ":")
	req.SetBasicAuth(uuid, secret)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		if err := json.NewDecoder(resp.Body).Decode(&namespaces); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode, namespaces
}

// put makes an action.
func put(t *testing.T, address, key, name string) {
	t.Helper()
	body := `{"exec":{"kind":"nodejs:default","code":"function main() {}"}}`
	url := "http://" + address + "/api/v1/namespaces/_/actions/" + name
	req, err := http.NewRequest(http.MethodPut, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	uuid, secret, _ := strings.Cut(key, ":")
	req.SetBasicAuth(uuid, secret)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("PUT %s: HTTP %d", name, resp.StatusCode)
	}
}

// Subjects are the same, whether they were made before the invoker runs, while it runs, or after it
// ended.
func TestUsers(t *testing.T) {
	dir := t.TempDir()
	flags := []string{"--run-dir", filepath.Join(dir, "run"), "--state-dir",
		filepath.Join(dir, "state")}
	user := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(must(t, append(append([]string{"user"}, args...), flags...)...))
	}
	wrong := func(says string, args ...string) {
		t.Helper()
		out, err := fastiov(t, append(append([]string{"user"}, args...), flags...)...).
			CombinedOutput()
		if err == nil || !strings.Contains(string(out), says) ||
			strings.Count(string(out), "\n") != 1 {
			t.Errorf("user %v: %v, %s; want a line with %q", args, err, out, says)
		}
	}
	ann := user("create", "ann", "--namespace", "a", "--fires-per-minute", "7")
	wrong("exists already", "create", "ann")

	address := listenLater(t)
	downAfter(t, filepath.Join(dir, "run"))
	must(t, append([]string{"up", "--sandbox", "sim", "--listen", address, "--metrics", ""},
		flags...)...)
	if status, namespaces := opens(t, address, ann); status != 200 || len(namespaces) != 1 ||
		namespaces[0] != "a" {
		t.Errorf("ann: HTTP %d, %v", status, namespaces)
	}
	bob := user("create", "bob")
	user("block", "ann")
	if status, _ := opens(t, address, ann); status != 403 {
		t.Errorf("ann, blocked: HTTP %d", status)
	}
	if status, _ := opens(t, address, bob); status != 200 {
		t.Errorf("bob: HTTP %d", status)
	}
	if list := user("list"); !strings.Contains(list, "blocked") ||
		!strings.Contains(list, "guest") || strings.Contains(list, bob[37:]) {
		t.Errorf("list:\n%s", list)
	}
	var subject access.Subject
	err := json.Unmarshal([]byte(user("get", "ann")), &subject)
	if err != nil || subject.Limits["firesPerMinute"] != 7 {
		t.Errorf("ann: %+v, %v", subject, err)
	}
	user("unblock", "ann")
	user("limits", "set", "ann", "--changes-per-minute", "0", "--max-action-memory", "256")
	want := `{"changesPerMinute":0,"firesPerMinute":7,"maxActionMemory":256}`
	if got := user("limits", "get", "ann"); got != want {
		t.Errorf("limits: %s", got)
	}
	wrong("from 0", "limits", "set", "ann", "--changes-per-minute", "-1")
	wrong("no limit is given", "limits", "set", "ann")
	user("limits", "delete", "ann")
	if got := user("limits", "get", "ann"); !strings.HasPrefix(got, "no limits are set") {
		t.Errorf("limits: %s", got)
	}
	revoked := ann
	ann = user("create", "ann", "--revoke")
	if status, _ := opens(t, address, revoked); status != 401 {
		t.Errorf("the revoked key: HTTP %d", status)
	}
	if status, namespaces := opens(t, address, ann); status != 200 ||
		!slices.Equal(namespaces, []string{"a"}) {
		t.Errorf("another key: HTTP %d, %v", status, namespaces)
	}
	wrong("no such subject", "create", "eve", "--revoke")
	user("delete", "bob")
	wrong("no such subject", "get", "bob")
	wrong("fastiov user delete \"bob\" --purge", "create", "bob")
	if out := user("delete", "bob", "--purge"); out != "deleted 0 entities and 0 records" {
		t.Errorf("purge: %s", out)
	}
	wrong("nothing of it is left", "delete", "bob", "--purge")
	bob = user("create", "bob", "--max-entities", "5")
	put(t, address, bob, "hello")
	user("delete", "bob")
	must(t, "down", "--run-dir", filepath.Join(dir, "run"))
	wrong("built in", "create", "guest")
	if out := user("delete", "bob", "--purge"); out != "deleted 1 entities and 0 records" {
		t.Errorf("purge without an invoker: %s", out)
	}
	must(t, append([]string{"up", "--sandbox", "sim", "--listen", address, "--metrics", ""},
		flags...)...)
	wrong("built in", "delete", "guest")
	wrong("no name", "create", "a/b")

	must(t, "down", "--run-dir", filepath.Join(dir, "run"))
	if list := user("list"); strings.Contains(list, "bob") || !strings.Contains(list, "active") {
		t.Errorf("list after the end:\n%s", list)
	}
}
