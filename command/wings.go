package command

import (
	"net"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/fastiov/fastiov/invoker/knative"
	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/invoker/store/embedded"
)

// A wing is an API beside OpenWhisk's, at the same addresses and over the same sandboxes. A new one
// is a package below invoker and a row of this table.
type wing struct {
	// open returns a handler that answers the wing's requests and gives all others to next, and
	// what ends the wing.
	open func(f *front, whisk *openwhisk.API, next http.Handler) (http.Handler, func(), error)
}

// Requests that belong to no row are OpenWhisk's.
var wings = []wing{{open: openKnative}}

// withWings returns the handler of all wings, and what ends them.
func (f *front) withWings(whisk *openwhisk.API, handler http.Handler) (
	_ http.Handler, end func(), err error,
) {
	var ends []func()
	end = func() {
		for _, end := range ends {
			end()
		}
	}
	for _, w := range wings {
		over, endOne, err := w.open(f, whisk, handler)
		if err != nil {
			end()
			return nil, nil, err
		}
		handler, ends = over, append(ends, endOne)
	}
	return handler, end, nil
}

// notBesideOthers says why Knative's API needs a store that tells all changes in their order: one
// for several invokers does so for the changes of one object.
const notBesideOthers = "Knative's API needs a store of its own: a watch needs the order of all " +
	"changes, which a Redis does not tell; give --store a file"

// issuer returns who signs the tokens of Knative's programs.
func (f *front) issuer() (*knative.Issuer, error) {
	_, port, err := net.SplitHostPort(f.plain.Addr().String())
	if err != nil {
		return nil, err
	}
	return knative.LoadIssuer(filepath.Join(f.stateDir, "tokens.key"),
		"https://"+net.JoinHostPort(f.domain, port))
}

func openKnative(
	f *front, whisk *openwhisk.API, next http.Handler,
) (http.Handler, func(), error) {
	if _, alone := f.cfg.Store.(*embedded.Store); !alone {
		f.cfg.Log.Warn("Knative's API is not served", "why", notBesideOthers)
		return knative.Refuse(notBesideOthers, next), func() {}, nil
	}
	_, port, err := net.SplitHostPort(f.plain.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	a, err := knative.New(knative.Config{
		Pool: whisk.Pool(), Store: f.cfg.Store, Directory: whisk.Register().Directory,
		Identify: whisk.Identify, Telemetry: whisk.Telemetry(), Keep: whisk.Keep,
		Tokens: f.tokens, Domain: f.domain, Mapped: f.mappedDomains(), Port: port, Log: f.cfg.Log,
	})
	if err != nil {
		return nil, nil, err
	}
	a.Secure(f.secured)
	return a.Over(next), a.Close, nil
}

// mappedDomains returns the domains at which services may have names of their own. The owner of a
// name that others reach the API at would get their keys: so none is open unless the operator says
// so.
func (f *front) mappedDomains() []string {
	return strings.FieldsFunc(f.mapped, func(r rune) bool { return r == ',' || r == ' ' })
}
