package entity

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

//go:embed runtimes.json
var standard []byte

// Runtimes is a runtimes.json: which image runs a kind, and which sandboxes are kept ready for it.
type Runtimes struct {
	families map[string][]Runtime
	kinds    map[string]*Runtime
	images   map[string]string // by kind
	defaults map[string]string // kind by "family:default"
}

// A Runtime is an entry of runtimes.json: one kind, such as nodejs:18. It has the fields that this
// product acts on, and no others.
type Runtime struct {
	Kind       string     `json:"kind"`
	Default    bool       `json:"default"`
	Deprecated bool       `json:"deprecated"`
	Image      Image      `json:"image"`
	StemCells  []StemCell `json:"stemCells,omitempty"`
}

// An Image is the reference of a runtime image.
type Image struct {
	Registry string `json:"registry,omitempty"`
	Prefix   string `json:"prefix,omitempty"`
	Name     string `json:"name"`
	Tag      string `json:"tag,omitempty"`
}

func (i Image) String() string {
	reference := i.Name
	for _, before := range []string{i.Prefix, i.Registry} {
		if before = strings.TrimSuffix(before, "/"); before != "" {
			reference = before + "/" + reference
		}
	}
	if i.Tag != "" {
		reference += ":" + i.Tag
	}
	return reference
}

// Standard returns the runtimes whose images this product makes.
func Standard() *Runtimes {
	r, err := ParseRuntimes(standard)
	if err != nil {
		panic(err) // a test reads it
	}
	return r
}

// ParseRuntimes reads a runtimes.json.
func ParseRuntimes(content []byte) (*Runtimes, error) {
	var manifest struct {
		Runtimes map[string][]Runtime `json:"runtimes"`
	}
	if err := json.Unmarshal(content, &manifest); err != nil {
		return nil, fmt.Errorf("runtimes: %w", err)
	}
	r := &Runtimes{families: manifest.Runtimes, kinds: map[string]*Runtime{},
		images: map[string]string{}, defaults: map[string]string{}}
	for family, list := range r.families {
		for i := range list {
			one := &list[i]
			if before, _, found := strings.Cut(one.Kind, ":"); !found || before != family ||
				r.kinds[one.Kind] != nil {
				return nil, fmt.Errorf(
					"runtimes: kind %q in family %q; it must be family:version, each once",
					one.Kind, family)
			}
			if !imageName.MatchString(one.Image.String()) {
				return nil, fmt.Errorf("runtimes: kind %s: image %q is no reference",
					one.Kind, one.Image)
			}
			for _, cell := range one.StemCells {
				if err := cell.check(); err != nil {
					return nil, fmt.Errorf("runtimes: stem cells of kind %s: %w", one.Kind, err)
				}
			}
			r.kinds[one.Kind], r.images[one.Kind] = one, one.Image.String()
			if one.Default {
				if r.defaults[family+":default"] != "" {
					return nil, fmt.Errorf("runtimes: family %s has more than one default", family)
				}
				r.defaults[family+":default"] = one.Kind
			}
		}
		if r.defaults[family+":default"] == "" {
			return nil, fmt.Errorf("runtimes: family %s has no default", family)
		}
	}
	if len(r.kinds) == 0 {
		return nil, fmt.Errorf("runtimes: there is none")
	}
	return r, nil
}

// Resolve returns the kind that is meant, which "family:default" names too.
func (r *Runtimes) Resolve(kind string) (string, error) {
	if named, found := r.defaults[kind]; found {
		kind = named
	}
	runtime := r.kinds[kind]
	switch {
	case runtime == nil:
		return "", bad("exec.kind is %.100q; served are %s, %s and %s", kind,
			strings.Join(r.Kinds(), ", "), Blackbox, Sequence)
	case runtime.Deprecated:
		return "", bad("exec.kind %s is deprecated; served are %s, %s and %s", kind,
			strings.Join(r.Kinds(), ", "), Blackbox, Sequence)
	}
	return kind, nil
}

// Kinds returns the kinds that new actions may have.
func (r *Runtimes) Kinds() []string {
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(r.kinds)) {
		if !r.kinds[kind].Deprecated {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// Image returns the image that runs a kind, or "" if the kind is not served.
func (r *Runtimes) Image(kind string) string { return r.images[kind] }

// Families returns the runtimes in the form that clients are shown.
func (r *Runtimes) Families() map[string][]Runtime { return r.families }
