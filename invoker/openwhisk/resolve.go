package openwhisk

import (
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
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
	groups map[string]string // of sandboxes with a package's parameters, beside plain's: by binding
}

// A resolved action is the action that a name stands for, for one caller.
type resolved struct {
	*action
	fixed *entity.Fixed
	// The group of sandboxes that may run this version of it, in the caller's namespace.
	group   string
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
	a.plain = resolved{action: a, fixed: entity.Fix(e.Annotations.True("final"), e.Parameters),
		group: fmt.Sprintf("%s@%d", a.full, a.revision)}
	return a, nil
}

// note remembers the group of an action that is named through a binding, or directly. It returns
// the group that it replaces, which had the parameters of another version.
func (a *action) note(binding, group string) (old string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if old = a.groups[binding]; old == group {
		return ""
	}
	if a.groups == nil {
		a.groups = map[string]string{}
	}
	a.groups[binding] = group
	return old
}

// forget drops the group of a binding, or all groups if none is named, and returns what it dropped.
func (a *action) forget(binding string) (groups []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for of, group := range a.groups {
		if of == binding || binding == "" {
			groups = append(groups, group)
			delete(a.groups, of)
		}
	}
	return groups
}

// retire ends the sandboxes that hold an action which was replaced.
func (a *API) retire(old *action) {
	for _, group := range append(old.forget(""), old.plain.group) {
		a.pool.Retire(group)
	}
}

// retireOf ends the sandboxes that have parameters of a package, or a binding, that was replaced.
func (a *API) retireOf(old *entity.Package) {
	provider, binding := entity.Binding{Namespace: old.Namespace, Name: old.Name}, ""
	if old.Bound() {
		provider, binding = old.Binding, bindingName(old)
	}
	for _, action := range a.catalog.actions.list(provider.Namespace, provider.Name+"/") {
		for _, group := range action.forget(binding) {
			a.pool.Retire(group)
		}
	}
}

func bindingName(p *entity.Package) string { return p.Namespace + "/" + p.Name }

// exists reports whether there is an action of that full name, NAMESPACE/NAME or
// NAMESPACE/PACKAGE/NAME.
func (a *API) exists(full string) bool {
	namespace, local, _ := strings.Cut(full, "/")
	found, _ := a.catalog.actions.get(namespace, local)
	return found != nil
}

// resolve finds the action that a path names for a caller: in a package, through a binding of one,
// or directly. It refuses an action that the caller is not entitled to.
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
		r.binding = bindingName(pkg)
	}
	if found.Exec.Kind == entity.Sequence {
		r.fixed = found.plain.fixed // a package's parameters are for the actions that are run of it
		return &r, nil
	}
	r.fixed = entity.Fix(found.Annotations.True("final"), append(layers, found.Parameters)...)
	// The parameters that a sandbox was initialised with include the package's.
	if len(r.fixed.Init) > 0 {
		r.group += fmt.Sprintf(" of %s %s as %s %s", provider.Name, provider.Version,
			r.binding, pkg.Version)
		if old := found.note(r.binding, r.group); old != "" {
			a.pool.Retire(old)
		}
	}
	return &r, nil
}

// visible finds the package that a path goes through and the one that it leads to, which is another
// if the first is a binding.
func (a *API) visible(user *access.Identity, path entity.Path) (pkg, provider *entity.Package,
	err error) {
	if pkg, err = a.readable(user, path.Namespace, path.Package); err != nil || !pkg.Bound() {
		return pkg, pkg, err
	}
	provider, err = a.readable(user, pkg.Binding.Namespace, pkg.Binding.Name)
	if err == nil && provider.Bound() {
		err = conflict("the package %s is a binding of a binding", pkg.Path())
	}
	return pkg, provider, err
}

// readable finds a package that the caller may see: one of its own, or a public one. Its error is
// the same for another's private package as for a missing one.
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
	return fail(http.StatusForbidden, "the supplied authentication is not authorized to access %q",
		strings.TrimPrefix(path.String(), "/"))
}
