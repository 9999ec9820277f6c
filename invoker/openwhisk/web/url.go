// Package web holds what web actions are to HTTP: how their URLs are read, what a request's
// arguments are, and which answer a result makes. It is pure: who calls, and on whose account, the
// API decides.
package web

import (
	"net/url"
	"strings"

	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
)

// A URL names a web action as namespace/package/name.extension; the rest is for the action.
type URL struct {
	Action    entity.Path
	Extension string
	Rest      string // as it was written, with the slash in front
}

// ParseURL reads a path as it was escaped. A name that ends in none of the extensions is one for
// http.
func ParseURL(escaped string) (u URL, found bool) {
	parts := strings.SplitN(escaped, "/", 4)
	if len(parts) < 3 {
		return u, false
	}
	if len(parts) == 4 {
		u.Rest = "/" + parts[3]
	}
	for i, to := range [...]*string{&u.Action.Namespace, &u.Action.Package, &u.Action.Name} {
		text, err := url.PathUnescape(parts[i])
		if err != nil || entity.CheckName(text) != nil {
			return u, false
		}
		*to = text
	}
	if u.Action.Package == "default" {
		u.Action.Package = ""
	}
	u.Extension = "http"
	name := u.Action.Name
	if dot := strings.LastIndexByte(name, '.'); dot >= 0 && extensions[name[dot+1:]] != nil {
		u.Action.Name, u.Extension = name[:dot], name[dot+1:]
	}
	return u, entity.CheckName(u.Action.Name) == nil
}
