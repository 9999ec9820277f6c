package openwhisk

import (
	"net/http"
	"slices"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
)

func (a *API) putPackage(w http.ResponseWriter, r *http.Request, rq *request) error {
	path, err := rq.ownNamed(r)
	if err != nil {
		return err
	}
	if path.Name == "default" {
		return badRequest("a package cannot be called default: that is how web URLs name none")
	}
	pkg, err := put(a, w, r, rq, path, &a.catalog.packages, maxEntityBody,
		func(old *entity.Package, by entity.PackageChange) (*entity.Package, []byte, error) {
			if old == nil {
				old = &entity.Package{Common: entity.Named(path)}
			}
			made, err := old.Changed(by, time.Now())
			if err == nil && by.Binding != nil && made.Bound() {
				err = a.bindable(rq, made.Binding.Path())
			}
			return made, nil, err
		})
	if err == nil {
		rq.answer(w, http.StatusOK, pkg)
	}
	return err
}

// bindable refuses a package that is not there, or not for the caller, or a binding itself.
func (a *API) bindable(rq *request, path entity.Path) error {
	if err := entity.CheckName(path.Name); err != nil {
		return err
	}
	pkg, err := a.readable(rq.user, path.Namespace, path.Name)
	switch {
	case err != nil && path.Namespace == rq.user.Namespace:
		return badRequest("the package %s, which is to be bound, does not exist", path)
	case err == nil && pkg.Bound():
		return badRequest("the package %s is a binding, which cannot be bound itself", path)
	}
	return err
}

func (a *API) getPackage(w http.ResponseWriter, r *http.Request, rq *request) error {
	path, err := rq.named(r)
	if err != nil {
		return err
	}
	pkg, provider, err := a.visible(rq.user,
		entity.Path{Namespace: path.Namespace, Package: path.Name})
	if err != nil {
		return err
	}
	var bound *entity.Package
	if provider != pkg {
		bound = provider
	}
	actions := bodies(a.catalog.actions.list(provider.Namespace, provider.Name+"/"))
	size := 0
	for _, one := range actions {
		size += one.Annotations.Size() + one.Parameters.Size()
	}
	if err := rq.bytes.upTo(int64(size)); err != nil {
		return err
	}
	rq.answer(w, http.StatusOK, pkg.Shown(bound, actions))
	return nil
}

// deletePackage deletes a package that is empty, or with force=true one with all actions in it.
func (a *API) deletePackage(w http.ResponseWriter, r *http.Request, rq *request) error {
	path, err := rq.ownNamed(r)
	if err != nil {
		return err
	}
	force, err := flag(r.URL.Query(), "force", false)
	if err != nil {
		return err
	}
	c := a.catalog
	deleted, err := remove(r.Context(), c, &c.packages, path, func(*entity.Package) error {
		for _, inside := range c.actions.list(path.Namespace, path.Name+"/") {
			if !force {
				return conflict(
					"the package %q is not empty; delete what is in it, or set force=true",
					path.Name)
			}
			if _, err := remove(r.Context(), c, &c.actions, inside.path, always); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		rq.answer(w, http.StatusOK, deleted)
	}
	return err
}

// listPackages lists the caller's packages; of another namespace, its public ones.
func (a *API) listPackages(w http.ResponseWriter, r *http.Request, rq *request) error {
	list := a.catalog.packages.list(rq.namespace, "")
	if rq.namespace != rq.user.Namespace {
		list = slices.DeleteFunc(list, func(p *entity.Package) bool { return !p.Publish })
	}
	return answerList(w, r, rq, "packages", list, (*entity.Package).Summary)
}

// refreshPackages answers POST packages/refresh, the only POST there is: clients ask for it after
// something was bound. Nothing is ever stale here.
func (a *API) refreshPackages(w http.ResponseWriter, r *http.Request, rq *request) error {
	if r.PathValue("name") != "refresh" {
		return notAllowed(w, r, rq)
	}
	if _, err := rq.own(); err != nil {
		return err
	}
	answer(w, http.StatusOK, map[string][]string{"added": {}, "updated": {}, "deleted": {}})
	return nil
}
