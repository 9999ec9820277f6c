package web

import (
	"bytes"
	"encoding/base64"
	stdjson "encoding/json"
	"math"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/net/http/httpguts"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/openwhisk/raw"
)

// A Page is a web action's result as an answer of HTTP.
type Page struct {
	Status int
	Header http.Header
	Body   []byte
}

// The extensions of web URLs, and what each makes of a result.
var extensions = map[string]func(result jsontext.Value) (*Page, error){
	"http": asHTTP,
	"json": asJSON,
	"html": func(result jsontext.Value) (*Page, error) {
		return asMarkup(result, "html", "text/html; charset=UTF-8")
	},
	"svg": func(result jsontext.Value) (*Page, error) {
		return asMarkup(result, "svg", "image/svg+xml")
	},
	"text": asText,
}

// Interpret makes a page of how an activation ended. An action answers by its error, too; strangers
// are told no more than that it could not be run.
func Interpret(extension string, response activation.Response) (*Page, error) {
	result := jsontext.Value(response.Result)
	switch response.Status {
	case activation.Success:
	case activation.ApplicationError:
		result = raw.Box("error", result)["error"]
	default:
		return nil, bad("the action could not process the request; its activation says why")
	}
	return extensions[extension](result)
}

// What a web action answers is its author's, and the live page, where keys are entered, has the
// same origin. So a browser shows it as if it came from another origin.
const policy = "Content-Security-Policy"

var asAnother = []string{
	"sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads",
}

// Confine sets that policy for an answer that is not a page.
func Confine(h http.Header) { h[policy] = asAnother }

// Answer writes the page.
func (p *Page) Answer(w http.ResponseWriter) {
	h := w.Header()
	p.Header[policy] = append(p.Header[policy], asAnother...) // a browser obeys each of them
	for name, values := range p.Header {
		h[name] = values
	}
	w.WriteHeader(p.Status)
	if len(p.Body) > 0 {
		_, _ = w.Write(p.Body) // the caller has gone, or the status allows no body
	}
}

func typed(contentType string, body []byte) *Page {
	return &Page{http.StatusOK, http.Header{"Content-Type": {contentType}}, body}
}

func unfit(extension, why string) error {
	return bad("the action's result cannot be shown as .%s: %s", extension, why)
}

func asJSON(result jsontext.Value) (*Page, error) {
	if kind := result.Kind(); kind != '{' && kind != '[' {
		return nil, unfit("json", "it is no object or array")
	}
	return typed("application/json", result), nil
}

// renderable returns the part of a result that its extension is about: the body, else the field
// named like the extension. A result that is not an object is that part itself.
func renderable(result jsontext.Value, extension string) (part jsontext.Value, found bool) {
	if result.Kind() != '{' {
		return result, len(result) > 0
	}
	object := raw.Box("", result)
	if part, found = object["body"]; !found {
		part, found = object[extension]
	}
	return part, found
}

func asMarkup(result jsontext.Value, extension, contentType string) (*Page, error) {
	part, _ := renderable(result, extension)
	text, is := raw.Text(part)
	if !is {
		return nil, unfit(extension, "neither it nor its body is a text")
	}
	return typed(contentType, []byte(text)), nil
}

func asText(result jsontext.Value) (*Page, error) {
	part, found := renderable(result, "text")
	if !found {
		return nil, entity.Refuse(http.StatusNotFound,
			"the action's result has neither body nor text")
	}
	text, is := raw.Text(part)
	if !is {
		var out bytes.Buffer
		if err := stdjson.Indent(&out, part, "", "  "); err != nil {
			return nil, unfit("text", err.Error())
		}
		text = out.String()
	}
	return typed("text/plain; charset=UTF-8", []byte(text)), nil
}

// asHTTP takes the result for the answer itself: {statusCode, headers, body}, each of which may be
// absent.
func asHTTP(result jsontext.Value) (*Page, error) {
	if result.Kind() != '{' {
		return nil, unfit("http", "it is no object")
	}
	object := raw.Box("", result)
	status, err := readStatus(object)
	if err != nil {
		return nil, err
	}
	header, err := readHeader(object)
	if err != nil {
		return nil, err
	}
	body, contentType, err := readPageBody(object["body"], header)
	if err != nil {
		return nil, err
	}
	switch {
	case len(body) == 0:
		header.Del("Content-Type")
		if status == 0 {
			status = http.StatusNoContent
		}
	default:
		header.Set("Content-Type", contentType)
		if status == 0 {
			status = http.StatusOK
		}
	}
	return &Page{status, header, body}, nil
}

// readStatus reads a whole number, maybe as a text. A status below 200 does not end a request, and
// there is none from 600.
func readStatus(object raw.Object) (int, error) {
	value, found := object["statusCode"]
	if !found {
		return 0, nil
	}
	status := math.NaN()
	if text, is := raw.Text(value); is {
		if n, err := strconv.Atoi(text); err == nil {
			status = float64(n)
		}
	} else if value.Kind() == '0' {
		if n, err := strconv.ParseFloat(string(value), 64); err == nil {
			status = n
		}
	}
	if whole := math.Trunc(status); whole != status || whole < 200 || whole > 599 {
		return 0, unfit("http", "its statusCode is "+raw.Excerpt(value)+
			", and must be a whole number from 200 to 599")
	}
	return int(status), nil
}

// Headers of every answer of the API, in canonical form.
const (
	RequestID    = "X-Request-Id"
	ActivationID = "X-Openwhisk-Activation-Id"
)

// notTheirs are the headers that are about the connection, not the answer, or that are the API's.
// What an action says of them counts for nothing.
var notTheirs = map[string]bool{
	"Connection": true, "Content-Length": true, "Keep-Alive": true, "Proxy-Connection": true,
	"Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
	RequestID: true, ActivationID: true,
}

func readHeader(object raw.Object) (http.Header, error) {
	header := http.Header{}
	value, found := object["headers"]
	if !found {
		return header, nil
	}
	if value.Kind() != '{' {
		return nil, unfit("http", "its headers are no object")
	}
	for name, value := range raw.Box("", value) {
		if !httpguts.ValidHeaderFieldName(name) {
			excerpt := strconv.Quote(raw.Excerpt([]byte(name)))
			return nil, unfit("http", excerpt+" can be no header's name")
		}
		values, err := headerValues(name, value, nil)
		if err != nil {
			return nil, err
		}
		if name = http.CanonicalHeaderKey(name); !notTheirs[name] && len(values) > 0 {
			header[name] = append(header[name], values...)
		}
	}
	return header, nil
}

// headerValues appends what a header is set to: one value, or each of an array.
func headerValues(name string, value jsontext.Value, to []string) ([]string, error) {
	text := string(value)
	switch value.Kind() {
	case '[':
		var list []jsontext.Value
		if json.Unmarshal(value, &list, raw.Lenient) != nil {
			break
		}
		for _, one := range list {
			if one.Kind() == '[' {
				return nil, unfit("http", "its header "+name+" is an array of arrays")
			}
			var err error
			if to, err = headerValues(name, one, to); err != nil {
				return nil, err
			}
		}
		return to, nil
	case '"':
		text, _ = raw.Text(value)
		fallthrough
	case '0', 't', 'f':
		if httpguts.ValidHeaderFieldValue(text) {
			return append(to, text), nil
		}
	}
	return nil, unfit("http", "its header "+name+" is nothing that a header can be set to")
}

// readPageBody makes bytes of a body: a text is itself, or in base64 where the content type is
// binary; anything else is JSON.
func readPageBody(
	body jsontext.Value, header http.Header,
) (content []byte, contentType string, err error) {
	text, isText := raw.Text(body)
	if len(body) == 0 || body.Kind() == 'n' || isText && text == "" {
		return nil, "", nil
	}
	contentType = "application/json"
	if isText {
		contentType = "text/html"
	}
	media, parameters := contentType, map[string]string{}
	if _, says := header["Content-Type"]; says {
		contentType = header.Get("Content-Type")
		media, parameters, err = mime.ParseMediaType(contentType)
		if err != nil || !strings.Contains(media, "/") {
			excerpt := strconv.Quote(raw.Excerpt([]byte(contentType)))
			return nil, "", unfit("http", "its content type is "+excerpt)
		}
	}
	_, hasCharset := parameters["charset"]
	switch {
	case !isText && !isJSON(media):
		return nil, "", unfit("http", "its body is JSON, and its content type "+media)
	case !isText:
		return body, contentType, nil
	case isJSON(media):
		if decoded, err := fromBase64(text); err == nil { // some actions send JSON so
			return decoded, contentType, nil
		}
		return []byte(text), contentType, nil
	case isTextual(media) || hasCharset:
		if !hasCharset {
			contentType += "; charset=UTF-8"
		}
		return []byte(text), contentType, nil
	}
	if content, err = fromBase64(text); err != nil {
		return nil, "", unfit("http",
			"its content type "+media+" is binary, and its body not base64")
	}
	return content, contentType, nil
}

func fromBase64(text string) ([]byte, error) {
	if strings.HasSuffix(text, "=") || len(text)%4 == 0 {
		return base64.StdEncoding.DecodeString(text)
	}
	return base64.RawStdEncoding.DecodeString(text)
}

func isJSON(media string) bool {
	return media == "application/json" || strings.HasSuffix(media, "+json")
}

// isTextual tells which media are text. All others are binary: JSON, where it is asked for as it
// came, is among them.
func isTextual(media string) bool {
	switch media {
	case "application/xml", "application/javascript", "application/x-www-form-urlencoded":
		return true
	case "image/svg+xml":
		return false
	}
	return strings.HasPrefix(media, "text/") || strings.HasSuffix(media, "+xml")
}
