package web

import (
	"encoding/base64"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
)

func statusOf(err error) int {
	var refusal *entity.Refusal
	if errors.As(err, &refusal) {
		return refusal.Status
	}
	return 0
}

func TestPages(t *testing.T) {
	in64 := base64.StdEncoding.EncodeToString([]byte("\x89PNG"))
	for _, p := range []struct {
		extension, result string
		status            int
		contentType, body string
	}{
		{"http", `{}`, 204, "", ""},
		{"http", `{"body":""}`, 204, "", ""},
		{"http", `{"body":null,"statusCode":200,"headers":{"Content-Type":"a/b"}}`, 200, "", ""},
		{"http", `{"body":"<p>"}`, 200, "text/html; charset=UTF-8", "<p>"},
		{"http", `{"body":"x","headers":{"content-type":"text/plain"}}`, 200, "text/plain; charset=UTF-8", "x"},
		{"http", `{"body":"x","headers":{"content-type":"text/plain; charset=latin1"}}`, 200, "text/plain; charset=latin1", "x"},
		{"http", `{"body":{"a":"<"},"statusCode":"201"}`, 201, "application/json", `{"a":"<"}`},
		{"http", `{"body":3}`, 200, "application/json", "3"},
		{"http", `{"body":[1],"headers":{"Content-Type":"application/a+json"}}`, 200, "application/a+json", "[1]"},
		{"http", `{"body":[1],"headers":{"Content-Type":"text/html"}}`, 400, "", "content type text/html"},
		{"http", `{"body":"` + in64 + `","headers":{"Content-Type":"image/png"}}`, 200, "image/png", "\x89PNG"},
		{"http", `{"body":"` + strings.TrimRight(in64, "=") + `","headers":{"Content-Type":"image/png"}}`, 200, "image/png", "\x89PNG"},
		{"http", `{"body":"not in base64","headers":{"Content-Type":"image/png"}}`, 400, "", "not base64"},
		{"http", `{"body":"eyJhIjoxfQ==","headers":{"Content-Type":"application/json"}}`, 200, "application/json", `{"a":1}`},
		{"http", `{"body":"{}","headers":{"Content-Type":"application/json"}}`, 200, "application/json", `{}`},
		{"http", `{"body":"x","headers":{"Content-Type":"nonsense"}}`, 400, "", "content type"},
		{"http", `{"statusCode":404,"body":"no"}`, 404, "text/html; charset=UTF-8", "no"},
		{"http", `{"statusCode":2e2}`, 200, "", ""},
		{"http", `{"statusCode":100}`, 400, "", "statusCode"},
		{"http", `{"statusCode":101,"body":"x"}`, 400, "", "statusCode"},
		{"http", `{"statusCode":999}`, 400, "", "statusCode"},
		{"http", `{"statusCode":200.5}`, 400, "", "statusCode"},
		{"http", `{"statusCode":1e400}`, 400, "", "statusCode"},
		{"http", `{"statusCode":"xyz"}`, 400, "", "statusCode"},
		{"http", `{"statusCode":null}`, 400, "", "statusCode"},
		{"http", `{"headers":{"A":"b\r\nEvil: yes"}}`, 400, "", "header A"},
		{"http", `{"headers":{"A: b\r\nEvil":"yes"}}`, 400, "", "name"},
		{"http", `{"headers":{"Trailer:X":"yes"}}`, 400, "", "name"},
		{"http", `{"headers":{"":"yes"}}`, 400, "", "name"},
		{"http", `{"headers":{"A":{}}}`, 400, "", "header A"},
		{"http", `{"headers":{"A":[["b"]]}}`, 400, "", "array of arrays"},
		{"http", `{"headers":[]}`, 400, "", "headers"},
		{"http", `[1]`, 400, "", "no object"},
		{"json", `{"body":"x"}`, 200, "application/json", `{"body":"x"}`},
		{"json", `[1]`, 200, "application/json", `[1]`},
		{"html", `{"html":"<p>"}`, 200, "text/html; charset=UTF-8", "<p>"},
		{"html", `{"html":"<p>","body":"<b>"}`, 200, "text/html; charset=UTF-8", "<b>"},
		{"html", `{"a":1}`, 400, "", "text"},
		{"svg", `{"svg":"<svg/>"}`, 200, "image/svg+xml", "<svg/>"},
		{"text", `{"text":3}`, 200, "text/plain; charset=UTF-8", "3"},
		{"text", `{"body":{"a":1}}`, 200, "text/plain; charset=UTF-8", "{\n  \"a\": 1\n}"},
		{"text", `{"text":null}`, 200, "text/plain; charset=UTF-8", "null"},
		{"text", `{}`, 404, "", "neither"},
		{"http", `{"error":{"statusCode":418,"body":"tea"}}`, 418, "text/html; charset=UTF-8", "tea"},
		{"http", `{"error":"no"}`, 400, "", "no object"},
		{"text", `{"error":"no"}`, 200, "text/plain; charset=UTF-8", "no"},
		{"json", `{"error":{"a":1}}`, 200, "application/json", `{"a":1}`},
		{"json", `nonsense`, 400, "", "could not process"},
	} {
		got, err := Interpret(p.extension, activation.Classify(200, []byte(p.result)))
		if err != nil {
			why, status := err.Error(), statusOf(err)
			oneLine := !strings.ContainsAny(why, "\r\n")
			if status != p.status || !strings.Contains(why, p.body) || !oneLine {
				t.Errorf(".%s of %s: %d %s, want %d with %q",
					p.extension, p.result, status, why, p.status, p.body)
			}
			continue
		}
		media := got.Header.Get("Content-Type")
		if got.Status != p.status || media != p.contentType || string(got.Body) != p.body {
			t.Errorf(".%s of %s: %d %v %q", p.extension, p.result, got.Status, got.Header, got.Body)
		}
	}
}

// Whatever an action answers, HTTP can say it, or it is refused in one line.
func FuzzPage(f *testing.F) {
	for _, result := range []string{
		`{"statusCode":200,"headers":{"a":["b",1,true]},"body":"x"}`,
		`{"error":{"statusCode":"404"}}`, `[1]`, `{"text":{"a":[]}}`,
		`{"html":"\ud800"}`, `{"statusCode":1e1}`,
		`{"headers":{"content-type":"application/json"},"body":"e30="}`,
		`{"body":"a","headers":{"Content-Type":"image/png"}}`,
	} {
		f.Add(result)
	}
	f.Fuzz(func(t *testing.T, result string) {
		response := activation.Classify(200, []byte(result))
		for extension := range extensions {
			p, err := Interpret(extension, response)
			if err != nil {
				status := statusOf(err)
				if status < 400 || status > 499 || strings.ContainsAny(err.Error(), "\r\n") {
					t.Fatalf(".%s of %q: %d %q", extension, result, status, err)
				}
				continue
			}
			if p.Status < 200 || p.Status > 599 {
				t.Fatalf(".%s of %q: status %d", extension, result, p.Status)
			}
			for name, values := range p.Header {
				for _, value := range values {
					valid := httpguts.ValidHeaderFieldName(name) &&
						httpguts.ValidHeaderFieldValue(value)
					if notTheirs[name] || !valid {
						t.Fatalf(".%s of %q: %q: %q", extension, result, name, value)
					}
				}
			}
			p.Answer(httptest.NewRecorder())
		}
	})
}

// BenchmarkPage is a web action's answer made of its result.
func BenchmarkPage(b *testing.B) {
	response := activation.Classify(200, []byte(`{"statusCode":200,"headers":
		{"Content-Type":"text/html","Set-Cookie":["a=1","b=2"]},"body":"<p>hello</p>"}`))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Interpret("http", response); err != nil {
			b.Fatal(err)
		}
	}
}

// Whatever the URL, what is found of it can name an action, and an extension that is known.
func FuzzURL(f *testing.F) {
	for _, path := range []string{
		"guest/default/a.json", "guest/pk/a.b.http/x//y", "g/p/.json", "g/%2e%2e/a", "a/b/c%",
		"///", "a/b/c.svg.svg",
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		u, found := ParseURL(path)
		if !found {
			return
		}
		p := u.Action
		names := []string{p.Namespace, p.Name}
		if p.Package != "" {
			names = append(names, p.Package)
		}
		for _, name := range names {
			if entity.CheckName(name) != nil {
				t.Fatalf("%q names %q", path, name)
			}
		}
		slash := u.Rest == "" || u.Rest[0] == '/'
		if extensions[u.Extension] == nil || !slash || !strings.HasSuffix(path, u.Rest) {
			t.Fatalf("%q: %+v", path, u)
		}
	})
}
