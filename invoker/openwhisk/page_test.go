package openwhisk

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
)

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
		got, err := interpret(p.extension, activation.Classify(200, []byte(p.result)))
		if err != nil {
			if statusOf(err) != p.status || !strings.Contains(err.Error(), p.body) || strings.ContainsAny(err.Error(), "\r\n") {
				t.Errorf(".%s of %s: %d %v, want %d with %q", p.extension, p.result, statusOf(err), err, p.status, p.body)
			}
			continue
		}
		if got.status != p.status || got.header.Get("Content-Type") != p.contentType || string(got.body) != p.body {
			t.Errorf(".%s of %s: %d %v %q", p.extension, p.result, got.status, got.header, got.body)
		}
	}
}

func TestPageHeaders(t *testing.T) {
	c := newClient(t)
	c.putWeb("a", "", "")
	c.does(map[string]func(map[string]any) string{"a": says(`{"body":"hello","headers":{
		"Set-Cookie":["a=1","b=2"],"X-Number":3,"X-Bool":true,"Content-Length":"1","Transfer-Encoding":"chunked","Connection":"close",
		"X-Request-ID":"forged","Access-Control-Allow-Origin":"https://a.example"}}`)})
	server := httptest.NewServer(c.api)
	defer server.Close()
	for _, method := range []string{"GET", "HEAD"} {
		r, err := http.NewRequest(method, server.URL+"/api/v1/web/guest/default/a", nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(got.Body)
		got.Body.Close()
		if want := map[string]string{"GET": "hello", "HEAD": ""}[method]; err != nil || string(body) != want {
			t.Errorf("%s: %q, %v", method, body, err)
		}
		h := got.Header
		if fmt.Sprint(h["Set-Cookie"]) != "[a=1 b=2]" || h.Get("X-Number") != "3" || h.Get("X-Bool") != "true" || h.Get("X-Request-Id") == "forged" ||
			fmt.Sprint(h["Access-Control-Allow-Origin"]) != "[https://a.example]" || h.Get(activationID) == "" || got.ContentLength != 5 {
			t.Errorf("%s: %v", method, h)
		}
	}
}

// No script of a web action reads what is typed into the live page: whatever the answer is, a browser
// takes it as if from another origin, and nothing that the action says of policies changes that.
func TestWhatAWebActionAnswersIsShownAsIfFromAnotherOrigin(t *testing.T) {
	c := newClient(t)
	for name, options := range map[string]string{
		"shut": `,{"key":"require-whisk-auth","value":"s"}`, "own": `,{"key":"web-custom-options","value":true}`,
	} {
		c.putWeb(name, options, "")
	}
	script := `<script>top.location</script>`
	answers := map[string]func(map[string]any) string{
		"page":  says(fmt.Sprintf(`{"body":%q}`, script)),
		"large": says(fmt.Sprintf(`{"body":%q}`, strings.Repeat(script, 10_000))),
		"image": says(`{"body":"PHN2Zy8+","headers":{"Content-Type":"image/svg+xml"}}`),
		"moved": says(`{"statusCode":302,"headers":{"Location":"/ui"}}`),
		"empty": says(`{}`),
		"fails": says(fmt.Sprintf(`{"error":{"statusCode":500,"body":%q}}`, script)),
		"dies":  says(`nonsense`),
		"allows": says(`{"body":"x","headers":{
			"content-security-policy":["sandbox allow-same-origin allow-scripts","default-src *"],
			"Content-Security-Policy-Report-Only":"default-src 'self'"}}`),
	}
	for name := range answers {
		c.putWeb(name, "", "")
	}
	c.does(answers)
	for _, b := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "page", "", 200},
		{"HEAD", "page", "", 200},
		{"POST", "page", "{}", 200},
		{"GET", "large", "", 200},
		{"GET", "image", "", 200},
		{"GET", "moved", "", 302},
		{"GET", "empty", "", 204},
		{"GET", "fails", "", 500},
		{"GET", "dies", "", 400},
		{"GET", "allows", "", 200},
		{"GET", "page.html", "", 200},
		{"GET", "page.json", "", 200},
		{"GET", "page.text", "", 200},
		{"GET", "page.svg", "", 200},
		{"GET", "shut", "", 401},
		{"GET", "nobody", "", 404},
		{"BREW", "page", "", 405},
		{"POST", "page", strings.Repeat(" ", entity.MaxArguments+1), 413},
		{"OPTIONS", "page", "", 200},
		{"OPTIONS", "own", "", 204},
	} {
		got := c.web(b.method, "guest/default/"+b.path, b.body, "Content-Type: application/json")
		confined := false
		for _, policy := range got.Header["Content-Security-Policy"] {
			flags := strings.Fields(policy)
			confined = confined || flags[0] == "sandbox" && !slices.Contains(flags, "allow-same-origin")
		}
		if got.StatusCode != b.status || !confined {
			t.Errorf("%s %s: HTTP %d, want %d; policies %q", b.method, b.path, got.StatusCode, b.status,
				got.Header["Content-Security-Policy"])
		}
	}
}

// Whatever an action answers, HTTP can say it, or it is refused in one line.
func FuzzPage(f *testing.F) {
	for _, result := range []string{
		`{"statusCode":200,"headers":{"a":["b",1,true]},"body":"x"}`, `{"error":{"statusCode":"404"}}`, `[1]`, `{"text":{"a":[]}}`, `{"html":"\ud800"}`,
		`{"headers":{"content-type":"application/json"},"body":"e30="}`, `{"body":"a","headers":{"Content-Type":"image/png"}}`, `{"statusCode":1e1}`,
	} {
		f.Add(result)
	}
	f.Fuzz(func(t *testing.T, result string) {
		response := activation.Classify(200, []byte(result))
		for extension := range extensions {
			p, err := interpret(extension, response)
			if err != nil {
				if status := statusOf(err); status < 400 || status > 499 || strings.ContainsAny(err.Error(), "\r\n") {
					t.Fatalf(".%s of %q: %d %q", extension, result, status, err)
				}
				continue
			}
			if p.status < 200 || p.status > 599 {
				t.Fatalf(".%s of %q: status %d", extension, result, p.status)
			}
			for name, values := range p.header {
				for _, value := range values {
					if notTheirs[name] || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
						t.Fatalf(".%s of %q: %q: %q", extension, result, name, value)
					}
				}
			}
			p.answer(httptest.NewRecorder())
		}
	})
}
