package entity

import (
	"encoding/json"
	"net/http"
	"slices"
)

// A Pair is an annotation or a parameter.
type Pair struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
	// A parameter for /init: the action finds it in its environment.
	Init bool `json:"init,omitempty"`
}

// Pairs holds each key once, in the order in which the pairs were given.
type Pairs []Pair

// MarshalJSON writes none as an empty list.
func (p Pairs) MarshalJSON() ([]byte, error) {
	if p == nil {
		return []byte("[]"), nil
	}
	return json.Marshal([]Pair(p))
}

// Get returns the value of a key.
func (p Pairs) Get(key string) (value json.RawMessage, found bool) {
	for i := range p {
		if p[i].Key == key {
			return p[i].Value, true
		}
	}
	return nil, false
}

// True reports whether the key's value is true.
func (p Pairs) True(key string) bool {
	value, _ := p.Get(key)
	return string(value) == "true"
}

// Truthy reports whether the key is there with a value other than false, null, 0 and the empty
// text.
func (p Pairs) Truthy(key string) bool {
	value, found := p.Get(key)
	switch string(value) {
	case "false", "null", "0", `""`:
		return false
	}
	return found
}

// With returns the pairs with others laid over them: a key that is there already moves to the end,
// with its new value.
func (p Pairs) With(others ...Pair) Pairs {
	last := make(map[string]int, len(others))
	for i := range others {
		last[others[i].Key] = i
	}
	merged := make(Pairs, 0, len(p)+len(others))
	for _, pair := range p {
		if _, replaced := last[pair.Key]; !replaced {
			merged = append(merged, pair)
		}
	}
	for i, pair := range others {
		if last[pair.Key] == i {
			merged = append(merged, pair)
		}
	}
	return merged
}

// Without returns the pairs without these keys.
func (p Pairs) Without(keys ...string) Pairs {
	return slices.DeleteFunc(slices.Clone(p), func(pair Pair) bool {
		return slices.Contains(keys, pair.Key)
	})
}

// MaxParameters bounds the parameters of an entity, and its annotations.
const MaxParameters = 1 << 20

func (p Pairs) check(what string) error {
	if _, found := p.Get(""); found {
		return bad("%s: a key is empty", what)
	}
	if size := p.Size(); size > MaxParameters {
		return Refuse(http.StatusRequestEntityTooLarge, "%s have %d bytes; at most %d",
			what, size, MaxParameters)
	}
	return nil
}

// Size is the number of bytes of the keys and values.
func (p Pairs) Size() (size int) {
	for i := range p {
		size += len(p[i].Key) + len(p[i].Value)
	}
	return size
}

// given returns the pairs of a request. Of equal keys the last counts, and a missing value is null.
func given(p *Pairs, otherwise Pairs) Pairs {
	if p == nil {
		return otherwise
	}
	var list Pairs
	for _, pair := range *p {
		if len(pair.Value) == 0 {
			pair.Value = json.RawMessage("null")
		}
		list = append(list, pair)
	}
	return Pairs{}.With(list...)
}
