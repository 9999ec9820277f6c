package openwhisk

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/store"
)

const (
	maxActionBody = entity.MaxCode*4/3 + 4*entity.MaxParameters // the code as base64, and the rest
	maxEntityBody = 4 * entity.MaxParameters
)

// named is the entity in the request's path.
func (rq *request) named(r *http.Request) (entity.Path, error) {
	p := entity.Path{Namespace: rq.namespace, Package: r.PathValue("package"),
		Name: r.PathValue("name")}
	err := entity.CheckName(p.Name)
	if p.Package != "" {
		err = errors.Join(entity.CheckName(p.Package), err)
	}
	return p, err
}

// ownNamed is the same for changes, which are made in the caller's own namespace.
func (rq *request) ownNamed(r *http.Request) (entity.Path, error) {
	if _, err := rq.own(); err != nil {
		return entity.Path{}, err
	}
	return rq.named(r)
}

func (a *API) putAction(w http.ResponseWriter, r *http.Request, rq *request) error {
	path, err := rq.ownNamed(r)
	if err != nil {
		return err
	}
	if err := a.holdsActions(path); err != nil {
		return err
	}
	var code []byte
	rules := entity.Rules{Runtimes: a.cfg.Runtimes, Limits: a.bounds(rq.user)}
	put, err := put(a, w, r, rq, path, &a.catalog.actions, maxActionBody,
		func(old *action, by entity.ActionChange) (made *entity.Action, _ []byte, err error) {
			from := &entity.Action{Common: entity.Named(path)}
			if old != nil {
				from = old.Action
			}
			if made, code, err = from.Changed(by, rules, time.Now()); err == nil && by.Exec != nil {
				err = a.composable(rq.user, made)
			}
			return made, code, err
		})
	if err == nil {
		rq.answer(w, http.StatusOK, put.Shown(code))
	}
	return err
}

// holdsActions refuses to put an action where none can be.
func (a *API) holdsActions(path entity.Path) error {
	if path.Package == "" {
		return nil
	}
	pkg, err := a.catalog.packages.find(path.Namespace, path.Package)
	if err == nil && pkg.Bound() {
		err = badRequest("%s is a binding; put the action into the package that it binds",
			pkg.Path())
	}
	return err
}

func (a *API) getAction(w http.ResponseWriter, r *http.Request, rq *request) error {
	path, err := rq.named(r)
	if err != nil {
		return err
	}
	withCode, err := flag(r.URL.Query(), "code", true)
	if err != nil {
		return err
	}
	found, err := a.resolve(rq.user, path)
	if err != nil {
		return err
	}
	var code []byte
	if withCode {
		if code, err = a.code(r.Context(), found.action); err != nil {
			return err
		}
		if err := rq.bytes.upTo(2 * int64(len(code))); err != nil { // it, and it as JSON
			return err
		}
	}
	shown := found.Shown(code)
	shown.Parameters = found.fixed.All
	rq.answer(w, http.StatusOK, shown)
	return nil
}

// code asks the store for an action's source; there may be none.
func (a *API) code(ctx context.Context, of *action) ([]byte, error) {
	code, err := a.cfg.Store.Code(ctx, a.catalog.actions.key(of.path.Namespace, of.path.Local()))
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return code, err
}

func (a *API) deleteAction(w http.ResponseWriter, r *http.Request, rq *request) error {
	path, err := rq.ownNamed(r)
	if err != nil {
		return err
	}
	if err := a.holdsActions(path); err != nil {
		return err
	}
	deleted, err := remove(r.Context(), a.catalog, &a.catalog.actions, path, always)
	if err == nil {
		rq.answer(w, http.StatusOK, deleted.Action)
	}
	return err
}

// listPackageActions lists the actions in a package, or in the one that it binds.
func (a *API) listPackageActions(w http.ResponseWriter, r *http.Request, rq *request) error {
	_, provider, err := a.visible(rq.user,
		entity.Path{Namespace: rq.namespace, Package: r.PathValue("package")})
	if err != nil {
		return err
	}
	return answerList(w, r, rq, "actions",
		a.catalog.actions.list(provider.Namespace, provider.Name+"/"), summary)
}

func summary(a *action) any { return a.Summary() }

// bodies returns the entities of actions.
func bodies(list []*action) []*entity.Action {
	entities := make([]*entity.Action, len(list))
	for i, a := range list {
		entities[i] = a.Action
	}
	return slices.Clip(entities)
}
