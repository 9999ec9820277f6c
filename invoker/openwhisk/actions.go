package openwhisk

import (
	"cmp"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"
)

// actions is where actions are kept.
type actions struct {
	mu        sync.Mutex
	byPath    map[string]*action
	revisions int
	size      int // of all code
}

var validName = regexp.MustCompile(`^[\w]([\w@ .&-]{0,254}[\w@.&-])?$`)

func (s *actions) get(namespace, name string) (*action, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.byPath[namespace+"/"+name]; a != nil {
		return a, nil
	}
	return nil, notFound("there is no action %q", name)
}

// put creates the action or, with overwrite, changes it; old is what it was.
func (s *actions) put(namespace, name string, by change, overwrite bool, now time.Time) (put, old *action, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old = s.byPath[namespace+"/"+name]
	if old != nil && !overwrite {
		return nil, nil, fail(http.StatusConflict, "the action %q exists already; overwrite=true changes it", name)
	}
	from := old
	if from == nil {
		from = &action{Namespace: namespace, Name: name}
	}
	if put, err = from.changed(by, now); err != nil {
		return nil, nil, err
	}
	size := s.size - len(from.Exec.code()) + len(put.Exec.code())
	if size > codeBytes {
		return nil, nil, fail(http.StatusRequestEntityTooLarge, "the code of all actions together would have %d bytes; at most %d, delete some", size, codeBytes)
	}
	s.revisions++
	put.revision = s.revisions
	s.byPath[put.path()], s.size = put, size
	return put, old, nil
}

func (s *actions) delete(namespace, name string) (*action, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.byPath[namespace+"/"+name]
	if a == nil {
		return nil, notFound("there is no action %q", name)
	}
	delete(s.byPath, a.path())
	s.size -= len(a.Exec.code())
	return a, nil
}

// current reports whether the action is still what its name stands for.
func (s *actions) current(a *action) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byPath[a.path()] == a
}

// list is the namespace's actions, newest first.
func (s *actions) list(namespace string) []*action {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*action
	for _, a := range s.byPath {
		if a.Namespace == namespace {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, func(a, b *action) int { return cmp.Compare(b.revision, a.revision) })
	return list
}

func (a *API) putAction(w http.ResponseWriter, r *http.Request, namespace string) error {
	name := r.PathValue("name")
	if !validName.MatchString(name) {
		return badRequest("%q is no name for an action: 1 to 256 of letters, digits and _@ .&-, beginning with a letter, digit or _, not ending in a blank", name)
	}
	overwrite, err := flag(r.URL.Query(), "overwrite", false)
	if err != nil {
		return err
	}
	body, err := readBody(w, r, maxPutBody)
	if err != nil {
		return err
	}
	var by change
	if err := decode(body, &by); err != nil {
		return err
	}
	put, old, err := a.actions.put(namespace, name, by, overwrite, time.Now())
	if err != nil {
		return err
	}
	if old != nil {
		a.pool.Retire(old.group())
	}
	answer(w, http.StatusOK, put.shown(true))
	return nil
}

func (a *API) getAction(w http.ResponseWriter, r *http.Request, namespace string) error {
	code, err := flag(r.URL.Query(), "code", true)
	if err != nil {
		return err
	}
	found, err := a.actions.get(namespace, r.PathValue("name"))
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, found.shown(code))
	return nil
}

func (a *API) deleteAction(w http.ResponseWriter, r *http.Request, namespace string) error {
	deleted, err := a.actions.delete(namespace, r.PathValue("name"))
	if err != nil {
		return err
	}
	a.pool.Retire(deleted.group())
	answer(w, http.StatusOK, deleted.shown(true))
	return nil
}

func (a *API) listActions(w http.ResponseWriter, r *http.Request, namespace string) error {
	return page(w, r, "actions", a.actions.list(namespace), (*action).summary)
}
