package couchtest

import (
	"encoding/json"
	"strings"
	"testing"
)

const good = `{"_id":"guest/0123456789abcdef0123456789abcdef","namespace":"guest","name":"hello","subject":"guest","activationId":"0123456789abcdef0123456789abcdef",
 "start":1700000000000,"end":1700000000001,"duration":1,"updated":1700000000001,"response":{"statusCode":1,"result":{"error":"no"},"size":14},"logs":["a"],
 "version":"0.0.1","publish":false,"entityType":"activation","annotations":[{"key":"path","value":"guest/hello"},{"key":"kind","value":"python:3"}]}`

func TestEveryFaultIsFound(t *testing.T) {
	for name, change := range map[string][2]string{
		"":                           {},
		"a status in words":          {`"statusCode":1`, `"statusCode":"application error"`},
		"a status that is none":      {`"statusCode":1`, `"statusCode":4`},
		"an error without its error": {`{"error":"no"}`, `{}`},
		"a time as text":             {`"start":1700000000000`, `"start":"2023-11-14T22:13:20Z"`},
		"a time in seconds":          {`"start":1700000000000`, `"start":1700000000`},
		"an end before the start":    {`"end":1700000000001`, `"end":1690000000001`},
		"no entityType":              {`"entityType":"activation",`, ``},
		"a field too much":           {`"publish":false`, `"publish":false,"code":1`},
		"another id":                 {`"_id":"guest/`, `"_id":"other/`},
		"an unknown annotation":      {`"key":"kind"`, `"key":"sort"`},
		"logs of numbers":            {`["a"]`, `[1]`},
		"no version":                 {`"version":"0.0.1"`, `"version":""`},
	} {
		text := strings.Replace(good, change[0], change[1], 1)
		var doc map[string]any
		if err := json.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatal(err)
		}
		wrong := faults("guest/0123456789abcdef0123456789abcdef", doc)
		if (len(wrong) > 0) != (name != "") {
			t.Errorf("%q: %v", name, wrong)
		}
	}
}
