//go:build oracle

package knative

import (
	"net/http"
	"strings"
	"testing"
)

// Lists and watches of a revision are answered as the oracle answers them, or are refused likewise.
func TestListsOfARevisionAreTheOracles(t *testing.T) {
	oracle, ours := startOracle(t), startOurs(t, asItIs)
	const all = objects + "configurations"
	change := func(method, path, body string) {
		t.Helper()
		q := request{method: method, path: path, body: body, form: "application/json"}
		if method == http.MethodPatch {
			q.form = "application/merge-patch+json"
		}
		for _, d := range compare(t, ours, oracle, q) {
			t.Errorf("%s %s: %s", method, path, d)
		}
	}
	create := func(name string) {
		t.Helper()
		change(http.MethodPost, all, `{"apiVersion":"serving.knative.dev/v1",
			"kind":"Configuration",`+strings.Replace(described(name, "example.com/hello")[1:], `9000`,
			`9000,"protocol":"TCP"`, 1))
	}
	for _, name := range []string{"b", "c", "d"} {
		create(name)
	}
	change(http.MethodPatch, all+"/c", `{"metadata":{"labels":{"l":"x"}}}`)
	change(http.MethodDelete, all+"/b", "")
	create("a")
	const future = "8000000000000000000"
	for _, query := range []string{
		"resourceVersion=$VERSION&resourceVersionMatch=Exact",
		"resourceVersion=$VERSION&resourceVersionMatch=Exact&limit=1",
		"resourceVersion=$VERSION&resourceVersionMatch=Exact&labelSelector=l",
		"resourceVersion=$VERSION&resourceVersionMatch=NotOlderThan",
		"resourceVersion=$VERSION&resourceVersionMatch=NotOlderThan&limit=1",
		"resourceVersion=$VERSION&limit=1", "resourceVersion=$VERSION",
		"resourceVersion=0", // where that server takes no limit
		"resourceVersion=0&resourceVersionMatch=NotOlderThan",
		"resourceVersion=0&resourceVersionMatch=Exact", "resourceVersionMatch=Exact",
		"resourceVersionMatch=NotOlderThan", "resourceVersion=7&resourceVersionMatch=exact",
		"resourceVersion=7&resourceVersionMatch=Exact&continue=" + theRest,
		"resourceVersionMatch=x&continue=" + theRest, "resourceVersion=x&continue=" + theRest,
		"resourceVersion=x", "resourceVersion=-1", "resourceVersion=x&resourceVersionMatch=Exact",
		"resourceVersion=x&resourceVersionMatch=NotOlderThan", "resourceVersion=9" + future + "9",
		"sendInitialEvents=true", "limit=x", "limit=-1", "timeoutSeconds=x",
		"resourceVersion=" + future + "&resourceVersionMatch=Exact",
		"resourceVersion=" + future + "&resourceVersionMatch=NotOlderThan",
		"resourceVersion=" + future, "resourceVersion=" + future + "&limit=1",
		"watch=1&sendInitialEvents=true", "watch=1&sendInitialEvents=false",
		"watch=1&resourceVersionMatch=Exact&resourceVersion=7",
		"watch=1&resourceVersionMatch=NotOlderThan",
		"watch=1&sendInitialEvents=true&resourceVersionMatch=Exact",
		"watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&continue=x",
	} {
		for _, of := range []string{"c", "d", "none"} { // of then, of a former time, and of now
			q := request{method: http.MethodGet, path: all + "?" + query, of: all + "/" + of}
			for _, d := range compare(t, ours, oracle, q) {
				t.Errorf("%s of %s: %s", query, of, d)
			}
			if !strings.Contains(query, "$VERSION") {
				break
			}
		}
	}
	change(http.MethodDelete, all+"?resourceVersionMatch=Exact", "")
	change(http.MethodDelete, all+"?resourceVersion=7&resourceVersionMatch=x", "")
}
