//go:build oracle

package knative

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/access"
)

// A server is an API that is asked: ours, or the oracle.
type server struct {
	client *http.Client
	base   string
	token  string
}

// A reply holds a server's answer, read.
type reply struct {
	code     int
	warnings []string
	body     any
}

// metadata returns what a server says of an object or a list.
func (s *server) metadata(t *testing.T, of string) map[string]any {
	t.Helper()
	has := s.send(t, request{method: http.MethodGet, path: of})
	meta, _ := dig(has.body, "metadata").(map[string]any)
	return meta
}

// send sends a request. What the server itself has given an object, a body names as $VERSION and
// $UID, and a path as $VERSION, or that of the list where there is no such object.
func (s *server) send(t *testing.T, q request) reply {
	t.Helper()
	body := q.body
	if strings.Contains(body, "$VERSION") || strings.Contains(body, "$UID") {
		meta := s.metadata(t, q.of)
		version, uid := cmp.Or(meta["resourceVersion"], any("7")), cmp.Or(meta["uid"], any("none"))
		body = strings.NewReplacer("$VERSION", fmt.Sprint(version),
			"$UID", fmt.Sprint(uid)).Replace(body)
	}
	where := q.path
	if strings.Contains(where, "$VERSION") {
		version := cmp.Or(s.metadata(t, q.of)["resourceVersion"],
			s.metadata(t, path.Dir(q.of))["resourceVersion"])
		where = strings.ReplaceAll(where, "$VERSION", fmt.Sprint(version))
	}
	r, err := http.NewRequestWithContext(t.Context(), q.method, s.base+where,
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", cmp.Or(q.form, "application/json"))
	r.Header.Set("Authorization", "Bearer "+s.token)
	answer, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := reply{code: answer.StatusCode, warnings: answer.Header.Values("Warning")}
	if err := json.Unmarshal(text, &a.body); err != nil {
		a.body = string(text)
	}
	return a
}

func dig(of any, path ...string) any {
	for _, key := range path {
		m, _ := of.(map[string]any)
		of = m[key]
	}
	return of
}

// Ids and versions differ, and so do the addresses that a message of Knative's has, and whole
// objects.
var differing = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|0x[0-9a-f]+|` +
	`Invalid value: "\{.*\}"|ResourceVersion in (record|the precondition) \(\d+\)|, current: \d+`)

// common returns of an answer what two servers are to have in common: not ids, times, versions and
// owners of fields, and nothing where there is nothing.
func common(of any) any {
	switch of := of.(type) {
	case map[string]any:
		left := map[string]any{}
		for key, value := range of {
			switch key {
			case "uid", "resourceVersion", "managedFields", "continue":
				continue
			case "creationTimestamp", "deletionTimestamp":
				value = value != nil
			case "causes": // that server tells some twice
				value = once(value)
			}
			if value = common(value); value != nil && value != false {
				left[key] = value
			}
		}
		if len(left) == 0 {
			return nil
		}
		return left
	case []any:
		var left []any
		for _, value := range of {
			left = append(left, common(value))
		}
		if len(left) == 0 {
			return nil
		}
		return left
	case string:
		of, _, _ = strings.Cut(of, "Immutable fields changed") // a dump of pointers follows
		return differing.ReplaceAllString(of, "…")
	}
	return of
}

// once returns a list without what it has twice.
func once(of any) any {
	var left []any
	all, _ := of.([]any)
	for _, value := range all {
		if !slices.ContainsFunc(left, func(v any) bool { return reflect.DeepEqual(v, value) }) {
			left = append(left, value)
		}
	}
	return left
}

// differences says where two answers differ.
func differences(at string, ours, theirs any) (all []string) {
	a, is := ours.(map[string]any)
	b, are := theirs.(map[string]any)
	if !is || !are {
		if !reflect.DeepEqual(ours, theirs) {
			return []string{fmt.Sprintf("%s: %s, oracle %s", at, short(ours), short(theirs))}
		}
		return nil
	}
	keys := map[string]bool{}
	for key := range a {
		keys[key] = true
	}
	for key := range b {
		keys[key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		all = append(all, differences(at+"."+key, a[key], b[key])...)
	}
	return all
}

func short(of any) string {
	text, _ := json.Marshal(of)
	return string(text[:min(len(text), 600)])
}

// compare sends a request to both and says how their answers differ.
func compare(t *testing.T, ours, oracle *server, q request) []string {
	t.Helper()
	a, b := ours.send(t, q), oracle.send(t, q)
	if a.code != b.code {
		return []string{fmt.Sprintf("%d, oracle %d: %s, oracle %s", a.code, b.code,
			short(dig(a.body, "message")), short(dig(b.body, "message")))}
	}
	found := differences("", common(a.body), common(b.body))
	if !slices.Equal(a.warnings, b.warnings) {
		found = append(found, fmt.Sprintf("warnings %q, oracle %q", a.warnings, b.warnings))
	}
	return found
}

// startOracle runs the oracle until the test ends.
func startOracle(t *testing.T) *server {
	t.Helper()
	program := os.Getenv("FASTIOV_TEST_ORACLE")
	if program == "" {
		t.Skip("the oracle is not built: run make test ONLY=full/knative-oracle")
	}
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}",
		"knative.dev/serving").Output()
	if err != nil {
		t.Fatal(err)
	}
	definitions := filepath.Join(strings.TrimSpace(string(module)), "config/core/300-resources")
	cmd := exec.CommandContext(t.Context(), program, "-dir", t.TempDir(), "-user", "ann",
		"-definitions", definitions)
	cmd.Env = append(os.Environ(), "SYSTEM_NAMESPACE=knative-serving")
	end, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end.Close(); _ = cmd.Wait() })
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the oracle does not begin: %v", err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(transport.CloseIdleConnections)
	s := &server{client: &http.Client{Transport: transport}, base: strings.TrimSpace(address)}
	for resource := range plurals { // its caches fill at the first request for each
		for s.send(t, request{method: http.MethodGet, path: objects + resource}).code !=
			http.StatusOK {
			time.Sleep(50 * time.Millisecond)
		}
	}
	return s
}

// startOurs serves the API without reconcilers, so its objects, too, stay as they were sent.
func startOurs(t *testing.T, over func(http.Handler) http.Handler) *server {
	t.Helper()
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	h.api.reconcile.queue.ShutDown()
	s := httptest.NewServer(over(h.http))
	t.Cleanup(func() { s.Close(); leave() })
	return &server{client: s.Client(), base: s.URL, token: h.key.String()}
}

func asItIs(h http.Handler) http.Handler { return h }

// Random requests are answered as Kubernetes's API server with Knative's definitions and admission
// answers them: with the same status, reason and body, but for ids, times and versions.
func TestAnswersAreTheOracles(t *testing.T) {
	oracle, ours := startOracle(t), startOurs(t, asItIs)
	seed, requests := number("FASTIOV_TEST_SEED", 1), number("FASTIOV_TEST_REQUESTS", 5000)
	g := newGenerator(uint64(seed))
	kinds := map[string]int{}
	differ := 0
	for n := range requests {
		q := g.next()
		kinds[q.sort]++
		for _, d := range compare(t, ours, oracle, q) {
			differ++
			t.Errorf("seed %d, request %d, %s %s %s %.300s\n%s", seed, n, q.sort, q.method, q.path,
				q.body, d)
		}
		if differ > 200 {
			t.Fatalf("%d differences in %d requests", differ, n+1)
		}
	}
	t.Logf("%d requests by seed %d: %v", requests, seed, kinds)
}

// The comparison finds a single field that is planted in one answer.
func TestAPlantedDifferenceIsFound(t *testing.T) {
	oracle := startOracle(t)
	ours := startOurs(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			record := httptest.NewRecorder()
			h.ServeHTTP(record, r)
			maps.Copy(w.Header(), record.Header())
			w.WriteHeader(record.Code)
			_, _ = io.WriteString(w, strings.Replace(record.Body.String(),
				`"timeoutSeconds":300`, `"timeoutSeconds":301`, 1))
		})
	})
	q := request{method: http.MethodPost, path: objects + "services",
		body: `{"apiVersion":"serving.knative.dev/v1","kind":"Service",` +
			strings.Replace(described("planted", "example.com/planted")[1:], `9000`,
				`9000,"protocol":"TCP"`, 1)}
	found := compare(t, ours, oracle, q)
	if len(found) != 1 || !strings.HasPrefix(found[0], ".spec.template.spec.timeoutSeconds: 301") {
		t.Errorf("found %q", found)
	}
}

func number(variable string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(variable)); err == nil {
		return n
	}
	return otherwise
}
