package knative

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/invoker/access"
)

// A list comes in pieces, each after the last.
func TestAListComesInPieces(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	for i := range 5 {
		h.must("POST", objects+"configurations", described(fmt.Sprintf("c%d", i), "x"))
	}
	var names []string
	for next := ""; ; {
		var list struct {
			Metadata struct{ Continue string }
			Items    []struct{ Metadata struct{ Name string } }
		}
		text := h.must("GET", objects+"configurations?limit=2&continue="+next, "")
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatal(err)
		}
		for _, i := range list.Items {
			names = append(names, i.Metadata.Name)
		}
		if next = list.Metadata.Continue; next == "" {
			break
		}
	}
	if fmt.Sprint(names) != "[c0 c1 c2 c3 c4]" {
		t.Errorf("the pieces have %s", names)
	}
}

// The pieces of a list are of one revision, whatever is made, changed and deleted meanwhile; and
// where too much was, the rest of what there is can be had.
func TestAListsPiecesAreOfOneTime(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	h.api.reconcile.queue.ShutDown() // else their statuses change, too
	const from = objects + "configurations"
	for _, name := range []string{"b", "c", "d", "f"} {
		h.must("POST", from, described(name, "before"))
	}
	type piece struct {
		Code     int
		Reason   string
		Metadata struct {
			Continue, ResourceVersion string
			RemainingItemCount        int
		}
		Items []struct {
			Metadata struct{ Name string }
			Spec     json.RawMessage
		}
		Rows []struct {
			Object struct{ Metadata struct{ Name string } }
		}
	}
	ask := func(query, accept string) (p piece, text string) {
		r, w := h.request("GET", from+query, "")
		r.Header.Set("Accept", accept)
		h.http.ServeHTTP(w, r)
		text = w.Body.String()
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			t.Fatal(err)
		}
		return p, text
	}
	first, _ := ask("?limit=1", "")
	if first.Metadata.RemainingItemCount != 3 {
		t.Errorf("%+v", first.Metadata)
	}
	h.must("POST", from, described("a", "after"))
	h.must("POST", from, described("e", "after"))
	h.must("DELETE", from+"/c", "")
	h.must("PATCH", from+"/d", `{"metadata":{"labels":{"l":"x"}},"spec":{"template":{"spec":`+
		`{"containers":[{"image":"after"}]}}}}`)
	rest, text := ask("?continue="+first.Metadata.Continue, "")
	var names []string
	for _, i := range rest.Items {
		names = append(names, i.Metadata.Name)
	}
	if fmt.Sprint(names) != "[c d f]" || strings.Contains(text, "after") ||
		rest.Metadata.ResourceVersion != first.Metadata.ResourceVersion {
		t.Errorf("%s after %s: %s", rest.Metadata.ResourceVersion, first.Metadata.ResourceVersion,
			text)
	}
	shown, text := ask("?limit=2&continue="+first.Metadata.Continue,
		"application/json;as=Table;v=v1;g=meta.k8s.io")
	if len(shown.Rows) != 2 || shown.Rows[0].Object.Metadata.Name != "c" ||
		shown.Metadata.RemainingItemCount != 1 {
		t.Errorf("as a table: %s", text)
	}
	if chosen, text := ask("?labelSelector=l&continue="+first.Metadata.Continue, ""); len(
		chosen.Items) != 0 {
		t.Errorf("chosen by what has come since: %s", text)
	}
	for revision, code := range map[int64]int{0: 400, -2: 400,
		int64(h.api.world.revision) + 1: 410, math.MaxInt64: 410} {
		token := place{Revision: revision, Start: "a"}.token()
		if p, text := ask("?limit=1&continue="+token, ""); p.Code != code || len(p.Items) > 0 {
			t.Errorf("a token of the revision %d: %s", revision, text)
		}
	}

	h.api.world.mu.Lock()
	h.api.world.floors["ann"] = h.api.world.revision
	h.api.world.mu.Unlock()
	old, text := ask("?limit=1&continue="+first.Metadata.Continue, "")
	if old.Code != 410 || old.Reason != "Expired" || old.Metadata.Continue == "" {
		t.Fatalf("too late: %s", text)
	}
	names = nil
	for next := old.Metadata.Continue; next != ""; {
		p, _ := ask("?limit=1&continue="+next, "")
		for _, i := range p.Items {
			names = append(names, i.Metadata.Name)
		}
		next = p.Metadata.Continue
	}
	if fmt.Sprint(names) != "[d e f]" {
		t.Errorf("the rest of what there is: %s", names)
	}
}

// A list may be of one revision, or of none before it. One that cannot be had is told so.
func TestAListOfARevision(t *testing.T) {
	h, leave := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	defer leave()
	h.api.reconcile.queue.ShutDown()
	const from = objects + "configurations"
	type list struct {
		Metadata struct{ ResourceVersion, Continue string }
		Items    []struct {
			Metadata struct{ Name, ResourceVersion string }
		}
	}
	ask := func(query string) (names string, l list) {
		if err := json.Unmarshal([]byte(h.must("GET", from+query, "")), &l); err != nil {
			t.Fatal(err)
		}
		for _, i := range l.Items {
			names += i.Metadata.Name
		}
		return names, l
	}
	h.must("POST", from, described("b", "before"))
	h.must("POST", from, described("d", "before"))
	_, then := ask("")
	at := "?resourceVersion=" + then.Metadata.ResourceVersion
	h.must("DELETE", from+"/b", "")
	h.must("POST", from, described("a", "after"))
	for query, want := range map[string]string{
		"&resourceVersionMatch=Exact": "bd", "&limit=5": "bd", "": "ad",
		"&resourceVersionMatch=NotOlderThan":         "ad",
		"&resourceVersionMatch=NotOlderThan&limit=5": "ad",
	} {
		got, l := ask(at + query)
		if got != want || (l.Metadata.ResourceVersion == then.Metadata.ResourceVersion) !=
			(want == "bd") {
			t.Errorf("%s: %s of %s", query, got, l.Metadata.ResourceVersion)
		}
	}
	got, first := ask(at + "&resourceVersionMatch=Exact&limit=1")
	rest, last := ask("?continue=" + first.Metadata.Continue)
	if got+rest != "bd" || last.Metadata.ResourceVersion != then.Metadata.ResourceVersion {
		t.Errorf("in pieces: %s, %s of %s", got, rest, last.Metadata.ResourceVersion)
	}
	refused := func(query string, code int, words ...string) {
		t.Helper()
		got, said := h.ask("GET", from+query, "", "")
		for _, word := range words {
			if got != code || !strings.Contains(said, word) {
				t.Errorf("%s is answered %d %s, want %d %s", query, got, said, code, word)
			}
		}
	}
	future := fmt.Sprint(h.api.world.reached() + 1)
	for _, match := range []string{"", "&resourceVersionMatch=Exact",
		"&resourceVersionMatch=NotOlderThan", "&limit=1",
		"&watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"} {
		refused("?resourceVersion="+future+match, 504, `"reason":"Timeout"`,
			"Too large resource version: "+future, `"reason":"ResourceVersionTooLarge"`)
	}
	refused("?resourceVersionMatch=Exact", 422, "is forbidden unless resourceVersion is provided")
	refused(at+"&resourceVersionMatch=x", 422, `Unsupported value: \"x\"`)
	refused(at+"&resourceVersionMatch=Exact&continue=x", 422, "when continue is provided")
	refused("?resourceVersion=0&resourceVersionMatch=Exact", 422,
		"is forbidden for resourceVersion")
	refused("?sendInitialEvents=true", 422, "sendInitialEvents is forbidden for list")
	refused("?watch=1&sendInitialEvents=true", 422, "requires setting resourceVersionMatch")
	refused("?resourceVersion=x", 400, "invalid resource version")
	refused("?limit=x", 400, "invalid syntax")
	h.api.world.mu.Lock()
	h.api.world.floors["ann"] = h.api.world.revision
	h.api.world.mu.Unlock()
	refused(at+"&resourceVersionMatch=Exact", 410, `"reason":"Expired"`,
		"The resourceVersion for the provided list is too old.")
	if got, _ := ask(at + "&resourceVersionMatch=NotOlderThan"); got != "ad" {
		t.Errorf("not older than what is forgotten: %s", got)
	}
}
