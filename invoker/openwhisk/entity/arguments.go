package entity

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxArguments bounds a caller's arguments, and all that an action gets beside its parameters.
const MaxArguments = 1 << 20

// MaxDepth bounds how deep arguments are nested. What is made of them is nested deeper, and readers
// of JSON stop at 10,000.
const MaxDepth = 1000

// space holds JSON's white space, which is less than Go's.
const space = " \t\r\n"

// Fixed holds an action's parameters, package < binding < action, ready to be laid under any
// caller's arguments.
type Fixed struct {
	All    Pairs          // in their order, those for /init too
	pairs  Pairs          // those for /run
	index  map[string]int // of pairs, by key
	whole  []byte         // an object of all of them
	locked bool           // none may be overridden
	Init   map[string]string
}

// Fix lays parameters over each other. Those marked for /init become the action's environment.
func Fix(locked bool, layers ...Pairs) *Fixed {
	var all Pairs
	for _, layer := range layers {
		all = all.With(layer...)
	}
	f := &Fixed{All: all, locked: locked, index: map[string]int{}}
	for _, p := range all {
		if !p.Init {
			f.index[p.Key] = len(f.pairs)
			f.pairs = append(f.pairs, p)
			continue
		}
		if f.Init == nil {
			f.Init = map[string]string{}
		}
		f.Init[p.Key] = text(p.Value)
	}
	f.whole = append(f.appendAll([]byte{'{'}, nil), '}')
	return f
}

// text is a value as an environment variable: a text as it is, anything else as its JSON.
func text(value json.RawMessage) string {
	var s string
	if json.Unmarshal(value, &s) == nil {
		return s
	}
	return string(value)
}

// appendAll writes the pairs, without those that are overridden, as members of an object.
func (f *Fixed) appendAll(to []byte, overridden []bool) []byte {
	first := true
	for i, p := range f.pairs {
		if overridden != nil && overridden[i] {
			continue
		}
		if !first {
			to = append(to, ',')
		}
		first = false
		// Text that is not UTF-8 was refused when it came in.
		to, _ = jsontext.AppendQuote(to, p.Key)
		to = append(append(to, ':'), p.Value...)
	}
	return to
}

// Under lays the parameters under a caller's arguments, which are an object or nothing. It encodes
// neither anew: its result is made of their bytes, and may be body itself.
func (f *Fixed) Under(body []byte) ([]byte, error) {
	if body = bytes.Trim(body, space); len(body) > MaxArguments {
		return nil, Refuse(http.StatusRequestEntityTooLarge,
			"the arguments have %d bytes; at most %d", len(body), MaxArguments)
	}
	return f.under(body, f.Locks)
}

// Lay is Under for arguments that no caller wrote, such as the result of a step before. They
// override locked parameters too. They may be an array, under which nothing can be laid.
func (f *Fixed) Lay(result []byte) ([]byte, error) {
	if result = bytes.Trim(result, space); len(result) > 0 && result[0] == '[' {
		return result, cmp.Or(shallow(result), valid(result))
	}
	return f.under(result, func(string) bool { return false })
}

// Locks reports whether callers may not set a parameter. A caller may set one that is null.
func (f *Fixed) Locks(name string) bool {
	i, fixed := f.index[name]
	return fixed && f.locked && string(f.pairs[i].Value) != "null"
}

func (f *Fixed) under(body []byte, locks func(name string) bool) ([]byte, error) {
	if len(body) == 0 || string(body) == "null" {
		return f.whole, nil
	}
	if body[0] != '{' {
		return nil, bad("the request content is malformed: arguments are a JSON object")
	}
	if err := shallow(body); err != nil {
		return nil, err
	}
	if len(f.pairs) == 0 {
		if err := valid(body); err != nil {
			return nil, err
		}
		return body, nil
	}
	overridden := make([]bool, len(f.pairs))
	names, err := members(body, func(name string) error {
		if locks(name) {
			return bad(
				"the request sets the parameter %.100q, which this action does not let callers set",
				name)
		}
		if i, fixed := f.index[name]; fixed {
			overridden[i] = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	laid := append(make([]byte, 0, len(f.whole)+len(body)), '{')
	if laid = f.appendAll(laid, overridden); len(laid) > 1 && names > 0 {
		laid = append(laid, ',')
	}
	return append(laid, body[1:]...), nil
}

// shallow refuses JSON that is nested too deep.
func shallow(body []byte) error {
	if bytes.Count(body, []byte{'{'})+bytes.Count(body, []byte{'['}) <= MaxDepth {
		return nil
	}
	depth, quoted := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++ // what it escapes
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > MaxDepth {
				return bad("the request content is malformed: it is nested more than %d deep",
					MaxDepth)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

// valid refuses all but one JSON value with each name once.
func valid(body []byte) error {
	if jsontext.Value(body).IsValid() {
		return nil
	}
	_, err := members(body, func(string) error { return nil }) // says why
	return err
}

// members calls see with the name of each member of the JSON object in body, and returns how many
// there are. body must hold nothing but that object.
func members(body []byte, see func(name string) error) (count int, err error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(body))
	if _, err := d.ReadToken(); err != nil {
		return 0, malformed(err)
	}
	for ; d.PeekKind() == '"'; count++ {
		name, err := d.ReadToken()
		if err != nil {
			return 0, malformed(err)
		}
		if err := see(name.String()); err != nil {
			return 0, err
		}
		if err := d.SkipValue(); err != nil {
			return 0, malformed(err)
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return 0, malformed(err)
	}
	if rest := bytes.Trim(body[d.InputOffset():], space); len(rest) > 0 {
		return 0, bad("the request content is malformed: %.40q follows the object", rest)
	}
	return count, nil
}
