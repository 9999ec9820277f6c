package web

import (
	"crypto/subtle"
	"encoding/base64"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/openwhisk/raw"
)

// What a web action is told of its request, which the request cannot say itself.
const (
	owMethod  = "__ow_method"
	OwHeaders = "__ow_headers"
	owPath    = "__ow_path"
	owUser    = "__ow_user"
	owQuery   = "__ow_query"
	owBody    = "__ow_body"
)

// An Action holds what decides how a web action is called.
type Action struct {
	Annotations entity.Pairs
	Fixed       *entity.Fixed // its parameters
	// Knows reports whether a key with that uuid is one of this endpoint's.
	Knows func(uuid string) bool
}

// Arguments returns the action's parameters, over them those of the query and the body, and what is
// told of the request. A raw action gets query and body as they came. rest is what follows the
// action in the URL; caller may be nil.
func (a Action) Arguments(
	r *http.Request, rest string, caller *access.Identity, body []byte,
) ([]byte, error) {
	var given raw.Object
	if a.Annotations.True("raw-http") {
		given = raw.Object{owQuery: raw.Of(r.URL.RawQuery), owBody: opaque(r, body)}
	} else {
		asked, unread, err := parameters(r, body)
		if err != nil {
			return nil, err
		}
		for name := range asked {
			switch name {
			case owMethod, OwHeaders, owPath, owUser, owQuery, owBody:
				return nil, bad(
					"the request sets the parameter %s, which is not for requests to set", name)
			}
			if a.Fixed.Locks(name) {
				return nil, bad(
					"the request sets the parameter %.100q, which this action does not let callers set",
					name)
			}
		}
		if given = asked; unread != nil {
			given[owBody] = unread
		}
	}
	given[owMethod], given[owPath] = raw.Of(strings.ToLower(r.Method)), raw.Of(rest)
	given[OwHeaders] = Told(r, a.Knows).JSON()
	if caller != nil {
		given[owUser] = raw.Of(caller.Namespace)
	}
	return a.Fixed.Lay(given.JSON())
}

// parameters returns those of the query and, over them, of a body that is a form or a JSON object.
// Any other body is given as it is.
func parameters(r *http.Request, body []byte) (given raw.Object, unread jsontext.Value, err error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, nil, bad("the query cannot be read: %v", err)
	}
	given = last(query)
	media, _ := mediaType(r)
	switch {
	case len(body) == 0:
	case media == "application/x-www-form-urlencoded":
		form, err := url.ParseQuery(string(body))
		if err != nil {
			return nil, nil, bad("the form cannot be read: %v", err)
		}
		maps.Copy(given, last(form))
	case isJSON(media):
		var value jsontext.Value
		if err := entity.Decode(body, &value); err != nil {
			return nil, nil, err
		}
		if value.Kind() != '{' {
			return given, value, nil
		}
		maps.Copy(given, raw.Box("", value))
	default:
		unread = opaque(r, body)
	}
	return given, unread, nil
}

// last are the values by name; of several the last.
func last(values url.Values) raw.Object {
	f := raw.Object{}
	for name, list := range values {
		f[strings.ToValidUTF8(name, "\uFFFD")] = raw.Of(list[len(list)-1])
	}
	return f
}

// opaque is a body as a text, in base64 where it is binary or JSON.
func opaque(r *http.Request, body []byte) jsontext.Value {
	media, charset := mediaType(r)
	if len(body) > 0 && !isTextual(media) && !charset || media == "application/json" {
		return raw.Of(base64.StdEncoding.EncodeToString(body))
	}
	return raw.Of(string(body))
}

func mediaType(r *http.Request) (media string, charset bool) {
	media, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return "", false
	}
	_, charset = parameters["charset"]
	return media, charset
}

// Told returns the request's headers. A key of this endpoint is not handed on, whether it opens
// anything now or not: the action hears whose a good one is.
func Told(r *http.Request, knows func(uuid string) bool) raw.Object {
	f := raw.Object{"host": raw.Of(r.Host)}
	for name, values := range r.Header {
		if name == "Authorization" && slices.ContainsFunc(values, func(value string) bool {
			alone := http.Request{Header: http.Header{name: {value}}}
			uuid, _, basic := alone.BasicAuth()
			return basic && knows(uuid)
		}) {
			continue
		}
		between := ", "
		if name == "Cookie" {
			between = "; "
		}
		f[strings.ToLower(name)] = raw.Of(strings.Join(values, between))
	}
	return f
}

// Admits reports whether the action lets the request in: its annotation require-whisk-auth is a
// secret that a header must repeat, or true where any key is enough.
func (a Action) Admits(r *http.Request, caller *access.Identity) bool {
	wants, found := a.Annotations.Get("require-whisk-auth")
	if !found {
		return true
	}
	secret := string(wants)
	switch jsontext.Value(wants).Kind() {
	case 'f':
		return true
	case 't':
		return caller != nil
	case '"':
		secret, _ = raw.Text(jsontext.Value(wants))
	case '0':
	default:
		return false
	}
	given := r.Header.Values("X-Require-Whisk-Auth")
	return len(given) > 0 && subtle.ConstantTimeCompare([]byte(given[0]), []byte(secret)) == 1
}

func bad(format string, args ...any) error {
	return entity.Refuse(http.StatusBadRequest, format, args...)
}
