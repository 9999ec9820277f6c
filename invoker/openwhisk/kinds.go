package openwhisk

import (
	"net/http"

	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
)

// These requests are served alike for entities of every kind. Only show, a client's view of an
// entity, differs.

func getting[V any](in *collection[V], show func(*V) any) handler {
	return func(w http.ResponseWriter, r *http.Request, rq *request) error {
		path, err := rq.ownNamed(r)
		if err != nil {
			return err
		}
		found, err := in.find(path.Namespace, path.Name)
		if err == nil {
			rq.answer(w, http.StatusOK, show(found))
		}
		return err
	}
}

func deleting[V any](c *catalog, in *collection[V], show func(*V) any) handler {
	return func(w http.ResponseWriter, r *http.Request, rq *request) error {
		path, err := rq.ownNamed(r)
		if err != nil {
			return err
		}
		deleted, err := remove(r.Context(), c, in, path, always)
		if err == nil {
			rq.answer(w, http.StatusOK, show(deleted))
		}
		return err
	}
}

func listing[V any](name string, in *collection[V], show func(*V) any) handler {
	return func(w http.ResponseWriter, r *http.Request, rq *request) error {
		namespace, err := rq.own()
		if err != nil {
			return err
		}
		return answerList(w, r, rq, name, in.list(namespace, ""), show)
	}
}

// put serves a PUT at that path: next makes an entity of the one that is there, or nil, and of the
// request's change C, which has most bytes at most.
func put[V, C, E any](
	a *API, w http.ResponseWriter, r *http.Request, rq *request, path entity.Path,
	in *collection[V], most int64, next func(old *V, by C) (made *E, code []byte, err error),
) (*V, error) {
	overwrite, err := flag(r.URL.Query(), "overwrite", false)
	if err != nil {
		return nil, err
	}
	var by C
	if err := rq.readInto(w, r, most, &by); err != nil {
		return nil, err
	}
	return change(r.Context(), a.catalog, in, path, func(old *V) (*E, []byte, error) {
		if old != nil && !overwrite {
			return nil, nil, conflict("the %s %q exists already; overwrite=true changes it",
				in.noun, path.Local())
		}
		return next(old, by)
	})
}

// always agrees to the removal of an entity.
func always[V any](*V) error { return nil }
