//go:build node || containers

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/coldstart"
)

// call calls the invoker at its usual address.
func call(t *testing.T, key, method, path string, in, out any) int {
	t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(method, "http://127.0.0.1:3233/api/v1/namespaces/_/"+
		path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	user, secret, _ := strings.Cut(key, ":")
	req.SetBasicAuth(user, secret)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if out != nil && resp.StatusCode < 300 {
		if err := json.Unmarshal(answer, out); err != nil {
			t.Fatalf("%s %s: %s: %v", method, path, answer, err)
		}
	}
	return resp.StatusCode
}

// await returns the result and the cold start of an activation once it has ended.
func await(t *testing.T, key, id string) (result map[string]any, cold coldstart.Record) {
	t.Helper()
	var record struct {
		Response struct {
			Result map[string]any `json:"result"`
		} `json:"response"`
		Annotations []struct {
			Key   string          `json:"key"`
			Value json.RawMessage `json:"value"`
		} `json:"annotations"`
	}
	for end := time.Now().Add(5 * time.Minute); call(t, key, http.MethodGet, "activations/"+
		id, nil, &record) != http.StatusOK; {
		if time.Now().After(end) {
			t.Fatalf("activation %s has no record", id)
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, a := range record.Annotations {
		if a.Key == "coldStart" {
			if err := json.Unmarshal(a.Value, &cold); err != nil {
				t.Fatal(err)
			}
			return record.Response.Result, cold
		}
	}
	t.Fatalf("activation %s: no cold start: %v", id, record.Response.Result)
	return nil, cold
}

type kubernetes struct {
	t        *testing.T
	url, key string
}

const servicesOf = "/apis/serving.knative.dev/v1/namespaces/guest/services"

func (k kubernetes) ask(method, path, body string) string {
	k.t.Helper()
	r, err := http.NewRequest(method, k.url+path, strings.NewReader(body))
	if err != nil {
		k.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+k.key)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		k.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode >= 300 {
		k.t.Fatalf("%s %s is answered %s %s %v", method, path, answer.Status, text, err)
	}
	return string(text)
}

func (k kubernetes) create(name, image, more string) {
	k.t.Helper()
	k.ask(http.MethodPost, servicesOf, fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"template":{
		"spec":{"containers":[{"image":%q,"env":[{"name":"TARGET","value":"you"}]%s}]}}}}`,
		name, image, more))
}

func (k kubernetes) await(name, want string) {
	k.t.Helper()
	for late := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		is := k.ask(http.MethodGet, servicesOf+"/"+name, "")
		if strings.Contains(is, want) {
			_, status, _ := strings.Cut(is, `"conditions":`)
			k.t.Logf("%s: %s", name, status)
			return
		}
		if time.Now().After(late) {
			k.t.Fatalf("%s is never %s: %s", name, want, is)
		}
	}
}

func (k kubernetes) curl(service string) string {
	k.t.Helper()
	said, err := k.get(service)
	if err != nil {
		k.t.Fatal(err)
	}
	return said
}

func (k kubernetes) get(service string) (string, error) {
	r, err := http.NewRequest(http.MethodGet, k.url+"/x", nil)
	if err != nil {
		return "", err
	}
	r.Host = service + ".guest.localhost:3233"
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s %s %w", service, answer.Status, text, err)
	}
	return string(text), nil
}
