package openwhisk

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/openwhisk/web"
)

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
		if want := map[string]string{"GET": "hello", "HEAD": ""}[method]; err != nil ||
			string(body) != want {
			t.Errorf("%s: %q, %v", method, body, err)
		}
		h := got.Header
		if fmt.Sprint(h["Set-Cookie"]) != "[a=1 b=2]" || h.Get("X-Number") != "3" ||
			h.Get("X-Bool") != "true" || h.Get("X-Request-Id") == "forged" ||
			fmt.Sprint(h["Access-Control-Allow-Origin"]) != "[https://a.example]" ||
			h.Get(web.ActivationID) == "" || got.ContentLength != 5 {
			t.Errorf("%s: %v", method, h)
		}
	}
}

// No script of a web action reads the text typed into the live page. Whatever the answer is, a
// browser takes it as if from another origin, and nothing that the action says of policies changes
// that.
func TestWhatAWebActionAnswersIsShownAsIfFromAnotherOrigin(t *testing.T) {
	c := newClient(t)
	for name, options := range map[string]string{
		"shut": `,{"key":"require-whisk-auth","value":"s"}`,
		"own":  `,{"key":"web-custom-options","value":true}`,
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
			confined = confined || flags[0] == "sandbox" &&
				!slices.Contains(flags, "allow-same-origin")
		}
		if got.StatusCode != b.status || !confined {
			t.Errorf("%s %s: HTTP %d, want %d; policies %q", b.method, b.path, got.StatusCode,
				b.status,
				got.Header["Content-Security-Policy"])
		}
	}
}
