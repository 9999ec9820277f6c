// Package raw reads and writes values of JSON that actions answered, which are passed on as they
// are.
package raw

import (
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// An Object holds the members of an object.
type Object map[string]jsontext.Value

// Lenient accepts what a runtime took for JSON, though it could be better.
var Lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// JSON returns the object with its values as they are. Whoever reads it checks the whole, its depth
// for example.
func (o Object) JSON() []byte {
	b := []byte{'{'}
	for i, name := range slices.Sorted(maps.Keys(o)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(Append(b, name), ':'), o[name]...)
	}
	return append(b, '}')
}

// Box returns the value's members if it is an object, else an object with the value under that
// name.
func Box(name string, value jsontext.Value) Object {
	var o Object
	if value.Kind() == '{' && json.Unmarshal(value, &o, Lenient) == nil {
		return o
	}
	return Object{name: value}
}

// Append appends a text as a value; bytes that are not UTF-8 are replaced.
func Append[Text string | []byte](b []byte, text Text) []byte {
	b, _ = jsontext.AppendQuote(b, text) // its error says that something was replaced
	return b
}

// Of returns a text as a value.
func Of(text string) jsontext.Value { return Append(nil, text) }

// Text returns the text that a value is, if it is one.
func Text(value jsontext.Value) (text string, is bool) {
	return text, value.Kind() == '"' && json.Unmarshal(value, &text, Lenient) == nil
}

// Excerpt returns the begin of what may be too long for a message.
func Excerpt(text []byte) string {
	const most = 200
	if len(text) > most {
		return strings.ToValidUTF8(string(text[:most]), "") + "…"
	}
	return string(text)
}
