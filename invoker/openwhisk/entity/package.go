package entity

import (
	"encoding/json"
	"time"
)

// A Package holds actions and the parameters they share. A package with a
// Binding holds no actions: it shows those of the package that it is bound to, and its parameters
// override that package's.
type Package struct {
	Common
	Parameters Pairs   `json:"parameters"`
	Binding    Binding `json:"binding"`
}

// A Binding names the package that is bound; the zero value names none.
type Binding struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// A PackageChange is the body of a PUT.
type PackageChange struct {
	CommonChange
	Parameters *Pairs   `json:"parameters"`
	Binding    *Binding `json:"binding"`
}

// Path is the name of the package that is bound.
func (b Binding) Path() Path { return Path{Namespace: b.Namespace, Name: b.Name} }

// Bound reports whether the package is a binding.
func (p *Package) Bound() bool { return p.Binding.Name != "" }

const boundTo = "binding" // the annotation that names it, for clients

// Changed returns the package that a change makes of p.
func (p *Package) Changed(by PackageChange, now time.Time) (*Package, error) {
	next := *p
	if err := next.change(by.CommonChange, now); err != nil {
		return nil, err
	}
	next.Parameters = given(by.Parameters, next.Parameters)
	if err := next.Parameters.check("parameters"); err != nil {
		return nil, err
	}
	if b := by.Binding; b != nil && *b != (Binding{}) {
		if !p.IsNew() && !p.Bound() {
			return nil, Refuse(409, "%s is a package; it cannot become a binding", p.Path())
		}
		path, err := ParsePath("/"+b.Namespace+"/"+b.Name, p.Namespace)
		if err != nil {
			return nil, err
		}
		path = path.In(path.Namespace, p.Namespace)
		next.Binding = Binding{path.Namespace, path.Name}
	}
	next.Annotations = next.Annotations.Without(boundTo)
	if next.Bound() {
		value, err := json.Marshal(next.Binding)
		if err != nil {
			panic(err) // two texts always marshal
		}
		next.Annotations = next.Annotations.With(Pair{Key: boundTo, Value: value})
	}
	return &next, nil
}

// Shown returns the package for GET with its actions. A binding shows the actions of the package it
// binds, and lays its own parameters over that one's.
func (p *Package) Shown(bound *Package, actions []*Action) any {
	type row struct {
		Name        string `json:"name"`
		Version     string `json:"version"`
		Annotations Pairs  `json:"annotations"`
		Parameters  Pairs  `json:"parameters"`
	}
	shown := struct {
		Package
		Actions []row `json:"actions"`
		Feeds   []row `json:"feeds"`
	}{*p, []row{}, []row{}}
	if bound != nil {
		shown.Parameters = bound.Parameters.With(p.Parameters...)
		shown.Annotations = bound.Annotations.With(p.Annotations...)
	}
	for _, a := range actions {
		r := row{a.Name, a.Version, a.Annotations, a.Parameters}
		if _, feed := a.Annotations.Get("feed"); feed {
			shown.Feeds = append(shown.Feeds, r)
		} else {
			shown.Actions = append(shown.Actions, r)
		}
	}
	return shown
}

// Summary is a list's row.
func (p *Package) Summary() any {
	return struct {
		Common
		Binding Binding `json:"binding"`
	}{p.Common, p.Binding}
}
