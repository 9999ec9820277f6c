package openwhisk

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/entity"
	"github.com/fastiov/fastiov/invoker/store"
)

// An action as the catalog holds it. It never changes: an update makes another.
type action struct {
	*entity.Action
	path     entity.Path
	full     string // the path as text
	revision uint64
	composed bool     // it runs no sandbox but other actions
	plain    resolved // as its own namespace resolves it, where no package adds parameters

	mu     sync.Mutex
	groups []string // beside plain's, of sandboxes that were initialised with a package's parameters
}

// A resolved action is what a name stands for, for one who calls.
type resolved struct {
	*action
	fixed   *entity.Fixed
	group   string // of the sandboxes that may run it, in the caller's namespace: no other version's
	binding string // namespace/name of the package binding it was named by
}

func decodeAction(doc store.Doc) (*action, error) {
	e, err := decoded[entity.Action](doc)
	if err != nil {
		return nil, err
	}
	if e.Exec.Binary == nil {
		e.Exec.Binary = new(bool)
	}
	a := &action{Action: e, path: e.Path(), full: e.Path().String(), revision: doc.Revision}
	a.composed = e.Exec.Kind == entity.Sequence || e.Annotations.Truthy("conductor")
	a.plain = resolved{action: a, fixed: entity.Fix(e.Annotations.True("final"), e.Parameters), group: fmt.Sprintf("%s@%d", a.full, a.revision)}
	return a, nil
}

// note remembers a group, to retire it with the action.
func (a *action) note(group string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if group != a.plain.group && !slices.Contains(a.groups, group) {
		a.groups = append(a.groups, group)
	}
}

// retire ends the sandboxes that hold an action which was replaced.
func (a *API) retire(old *action) {
	old.mu.Lock()
	defer old.mu.Unlock()
	for _, group := range append([]string{old.plain.group}, old.groups...) {
		a.pool.Retire(group)
	}
}

// exists tells whether there is an action of that full name, NAMESPACE/NAME or NAMESPACE/PACKAGE/NAME.
func (a *API) exists(full string) bool {
	namespace, local, _ := strings.Cut(full, "/")
	found, _ := a.catalog.actions.get(namespace, local)
	return found != nil
}

// resolve finds the action that a path names for a caller: in a package, through a binding of one, or in none; and refuses what the
// caller is not entitled to.
func (a *API) resolve(user *access.Identity, path entity.Path) (*resolved, error) {
	if path.Package == "" {
		if path.Namespace != user.Namespace {
			return nil, forbidden(path)
		}
		found, err := a.catalog.actions.find(path.Namespace, path.Name)
		if err != nil {
			return nil, err
		}
		return &found.plain, nil
	}
	pkg, provider, err := a.visible(user, path)
	if err != nil {
		return nil, err
	}
	found, err := a.catalog.actions.find(provider.Namespace, provider.Name+"/"+path.Name)
	if err != nil {
		return nil, err
	}
	layers := []entity.Pairs{provider.Parameters}
	r := resolved{action: found, group: found.plain.group}
	if pkg != provider {
		layers = append(layers, pkg.Parameters)
		r.binding = pkg.Namespace + "/" + pkg.Name
	}
	if found.Exec.Kind == entity.Sequence {
		r.fixed = found.plain.fixed // a package's parameters are for what is run of it
		return &r, nil
	}
	r.fixed = entity.Fix(found.Annotations.True("final"), append(layers, found.Parameters)...)
	if len(r.fixed.Init) > 0 { // what a sandbox was initialised with is the package's too
		r.group += fmt.Sprintf(" of %s %s as %s %s", provider.Name, provider.Version, r.binding, pkg.Version)
		found.note(r.group)
	}
	return &r, nil
}

// visible finds the package that a path goes through and the one that it leads to, which is another where the first is a binding.
func (a *API) visible(user *access.Identity, path entity.Path) (pkg, provider *entity.Package, err error) {
	if pkg, err = a.readable(user, path.Namespace, path.Package); err != nil || !pkg.Bound() {
		return pkg, pkg, err
	}
	provider, err = a.readable(user, pkg.Binding.Namespace, pkg.Binding.Name)
	if err == nil && provider.Bound() {
		err = conflict("the package %s is a binding of a binding", pkg.Path())
	}
	return pkg, provider, err
}

// readable finds a package that the caller may see: one of its own, or a public one. What others keep to themselves is not told from
// what is not there.
func (a *API) readable(user *access.Identity, namespace, name string) (*entity.Package, error) {
	pkg, _ := a.catalog.packages.get(namespace, name)
	switch {
	case namespace == user.Namespace && pkg == nil:
		return nil, notFound("there is no package /%s/%s", namespace, name)
	case namespace != user.Namespace && (pkg == nil || !pkg.Publish):
		return nil, forbidden(entity.Path{Namespace: namespace, Name: name})
	}
	return pkg, nil
}

func forbidden(path entity.Path) error {
	return fail(http.StatusForbidden, "the supplied authentication is not authorized to access %q", strings.TrimPrefix(path.String(), "/"))
}
