package entity

import (
	"encoding/json"
	"strings"
)

// CheckName refuses what no entity can be called.
func CheckName(name string) error {
	if !isName(name) {
		return bad(
			"%.300q is no name: 1 to 256 of letters, digits and _@ .&-, beginning with a letter, digit or _, not ending in a blank",
			name)
	}
	return nil
}

// isName matches ^\w([\w@ .&-]{0,254}[\w@.&-])?$. Each call asks it, so it does not use a regexp.
func isName(s string) bool {
	if s == "" || len(s) > 256 || s[len(s)-1] == ' ' || strings.IndexByte("@ .&-", s[0]) >= 0 {
		return false
	}
	for _, c := range []byte(s) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
			strings.IndexByte("_@ .&-", c) >= 0) {
			return false
		}
	}
	return true
}

// A Path names an entity: /Namespace/Name, or /Namespace/Package/Name.
type Path struct{ Namespace, Package, Name string }

// ParsePath reads a name as clients write it: "name", "/namespace/name", "/namespace/package/name".
// The slash in front is optional. A lone name is in the namespace own, and "_" stands for own.
func ParsePath(text, own string) (Path, error) {
	parts := strings.Split(strings.TrimPrefix(text, "/"), "/")
	for _, part := range parts {
		if err := CheckName(part); err != nil {
			return Path{}, err
		}
	}
	p := Path{Namespace: own, Name: parts[len(parts)-1]}
	switch len(parts) {
	case 1:
		return p, nil
	case 3:
		p.Package = parts[1]
	case 2:
	default:
		return Path{}, bad("%.300q is no name of an entity: /namespace/package/name at most", text)
	}
	return p.In(parts[0], own), nil
}

// In returns the path in another namespace; "_" stands for own.
func (p Path) In(namespace, own string) Path {
	if p.Namespace = namespace; namespace == "_" || namespace == "" {
		p.Namespace = own
	}
	return p
}

// Above returns the part that clients call the namespace of an entity: "namespace" or
// "namespace/package".
func (p Path) Above() string {
	if p.Package == "" {
		return p.Namespace
	}
	return p.Namespace + "/" + p.Package
}

// Local is the name within the namespace: "name" or "package/name".
func (p Path) Local() string {
	if p.Package == "" {
		return p.Name
	}
	return p.Package + "/" + p.Name
}

// String is the fully qualified name.
func (p Path) String() string { return "/" + p.Namespace + "/" + p.Local() }

// MarshalJSON writes a reference to an entity as OpenWhisk does.
func (p Path) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Path string `json:"path"`
		Name string `json:"name"`
	}{p.Above(), p.Name})
}

// UnmarshalJSON reads that form and a name as text, whose "_" is left to be replaced.
func (p *Path) UnmarshalJSON(content []byte) (err error) {
	var text string
	if len(content) > 0 && content[0] == '{' {
		var reference struct {
			Path string `json:"path"`
			Name string `json:"name"`
		}
		if err := Decode(content, &reference); err != nil {
			return err
		}
		text = "/" + strings.TrimPrefix(reference.Path, "/") + "/" + reference.Name
	} else if err := Decode(content, &text); err != nil {
		return err
	}
	*p, err = ParsePath(text, "_")
	return err
}
