package couch

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"testing"
)

// always answers every request with the same body.
type always []byte

func (a always) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Status: "200 OK", Header: http.Header{},
		Body: io.NopCloser(bytes.NewReader(a))}, nil
}

func FuzzAction(f *testing.F) {
	f.Add([]byte(
		`{"_id":"a/b","_rev":"1-a","namespace":"a","name":"b","exec":{"kind":"python:3","code":"x"},"limits":{"logs":0},"annotations":[{"key":"k","value":1}]}`))
	f.Add([]byte(
		`{"_rev":"1-a","namespace":"a","name":"b","exec":{"kind":"java:8","jar":{"attachmentName":"mem:YQ==","length":1},"binary":true}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		c := New(Config{URL: &url.URL{Scheme: "http", Host: "couch:5984", Path: "/x_"}})
		c.http.Transport = always(body)
		a, err := c.Action(t.Context(), "a/b")
		if err != nil {
			return
		}
		if a.ID != "a/b" || a.Revision == "" || a.Name == "" || a.Namespace == "" ||
			a.Exec.Kind == "" || a.Exec.Kind == "sequence" {
			t.Errorf("%q was taken for %+v", body, a)
		}
		a.Truthy("k", true)
	})
}
