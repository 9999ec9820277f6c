package command

import (
	"net/http"
	"strings"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/invoker/pool"
)

// A wing is an API beside OpenWhisk's, at the same addresses and over the same sandboxes. A new one
// is a package below invoker and a row of this table.
type wing struct {
	path string // begins the paths of its requests, and ends in a slash
	// open returns the API. Its requests need a key: admit returns who has sent one, or answers it
	// and returns nil.
	open func(
		sandboxes *pool.Pool,
		admit func(http.ResponseWriter, *http.Request) *access.Identity,
	) http.Handler
}

// Requests that belong to no row are OpenWhisk's.
var wings []wing

// withWings returns the handler of all wings.
func withWings(whisk *openwhisk.API) http.Handler {
	handlers := make([]http.Handler, len(wings))
	for i, w := range wings {
		handlers[i] = w.open(whisk.Pool(), whisk.Admit)
	}
	return http.HandlerFunc(func(to http.ResponseWriter, r *http.Request) {
		for i, w := range wings {
			if strings.HasPrefix(r.URL.Path, w.path) {
				handlers[i].ServeHTTP(to, r)
				return
			}
		}
		whisk.ServeHTTP(to, r)
	})
}
