package openwhisk

import (
	"net/http"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
)

func (a *API) putRule(w http.ResponseWriter, r *http.Request, rq *request) error {
	path, err := rq.ownNamed(r)
	if err != nil {
		return err
	}
	overwrite, err := flag(r.URL.Query(), "overwrite", false)
	if err != nil {
		return err
	}
	var by entity.RuleChange
	if err := rq.readInto(w, r, maxEntityBody, &by); err != nil {
		return err
	}
	put, err := change(r.Context(), a.catalog, &a.catalog.rules, path.Namespace, path.Name, func(old *entity.Rule) (*entity.Rule, []byte, error) {
		if err := overwriting(old != nil, overwrite, "rule", path.Name); err != nil {
			return nil, nil, err
		}
		if old == nil {
			old = &entity.Rule{Common: entity.Named(path)}
		}
		made, err := old.Changed(by, time.Now())
		if err == nil {
			err = a.tieable(rq, made)
		}
		return made, nil, err
	})
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, put)
	return nil
}

// tieable refuses a rule about what is not there, or not for the caller.
func (a *API) tieable(rq *request, rule *entity.Rule) error {
	if trigger, _ := a.catalog.triggers.get(rule.Trigger.Namespace, rule.Trigger.Name); trigger == nil {
		return badRequest("there is no trigger %s", rule.Trigger)
	}
	_, err := a.resolve(rq.user, rule.Action)
	if statusOf(err) == http.StatusNotFound {
		err = badRequest("%v", err)
	}
	return err
}

// setRule activates or deactivates a rule.
func (a *API) setRule(w http.ResponseWriter, r *http.Request, rq *request) error {
	path, err := rq.ownNamed(r)
	if err != nil {
		return err
	}
	if err := rq.user.Change(rq.accepted, rq.user.Limits); err != nil {
		return err
	}
	var wish struct {
		Status string `json:"status"`
	}
	if err := rq.readInto(w, r, maxEntityBody, &wish); err != nil {
		return err
	}
	status, err := entity.ParseStatus(wish.Status)
	if err != nil {
		return err
	}
	set, err := change(r.Context(), a.catalog, &a.catalog.rules, path.Namespace, path.Name, func(old *entity.Rule) (*entity.Rule, []byte, error) {
		if old == nil {
			return nil, nil, notFound("there is no rule /%s/%s", path.Namespace, path.Name)
		}
		if trigger, _ := a.catalog.triggers.get(old.Trigger.Namespace, old.Trigger.Name); trigger == nil {
			return nil, nil, notFound("the rule's trigger %s is gone; only a rule with a trigger can be set", old.Trigger)
		}
		return old.Set(status, time.Now()), nil, nil
	})
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, set)
	return nil
}

func (a *API) getRule(w http.ResponseWriter, r *http.Request, rq *request) error {
	path, err := rq.ownNamed(r)
	if err != nil {
		return err
	}
	found, err := a.catalog.rules.find(path.Namespace, path.Name)
	if err == nil {
		answer(w, http.StatusOK, a.effective(found))
	}
	return err
}

// effective is the rule as it acts: one without its trigger is inactive.
func (a *API) effective(rule *entity.Rule) *entity.Rule {
	if trigger, _ := a.catalog.triggers.get(rule.Trigger.Namespace, rule.Trigger.Name); trigger != nil {
		return rule
	}
	return rule.Set(entity.Inactive, time.UnixMilli(rule.Updated))
}

func (a *API) deleteRule(w http.ResponseWriter, r *http.Request, rq *request) error {
	path, err := rq.ownNamed(r)
	if err != nil {
		return err
	}
	deleted, err := remove(r.Context(), a.catalog, &a.catalog.rules, path.Namespace, path.Name, func(*entity.Rule) error { return nil })
	if err == nil {
		answer(w, http.StatusOK, deleted.Set(entity.Inactive, time.Now()))
	}
	return err
}

func (a *API) listRules(w http.ResponseWriter, r *http.Request, rq *request) error {
	namespace, err := rq.own()
	if err != nil {
		return err
	}
	return answerList(w, r, "rules", a.catalog.rules.list(namespace, ""), func(rule *entity.Rule) any { return a.effective(rule) })
}
