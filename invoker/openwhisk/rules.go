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
	rule, err := put(a, w, r, rq, path, &a.catalog.rules, maxEntityBody,
		func(old *entity.Rule, by entity.RuleChange) (*entity.Rule, []byte, error) {
			if old == nil {
				old = &entity.Rule{Common: entity.Named(path)}
			}
			made, err := old.Changed(by, time.Now())
			if err == nil {
				err = a.tieable(rq, made)
			}
			return made, nil, err
		})
	if err == nil {
		rq.answer(w, http.StatusOK, rule)
	}
	return err
}

// tieable refuses a rule about an entity that is not there, or not for the caller.
func (a *API) tieable(rq *request, rule *entity.Rule) error {
	if !a.hasTrigger(rule) {
		return badRequest("there is no trigger %s", rule.Trigger)
	}
	_, err := a.resolve(rq.user, rule.Action)
	if statusOf(err) == http.StatusNotFound {
		err = badRequest("%v", err)
	}
	return err
}

func (a *API) hasTrigger(rule *entity.Rule) bool {
	trigger, _ := a.catalog.triggers.get(rule.Trigger.Namespace, rule.Trigger.Name)
	return trigger != nil
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
	set, err := change(r.Context(), a.catalog, &a.catalog.rules, path,
		func(old *entity.Rule) (*entity.Rule, []byte, error) {
			if old == nil {
				return nil, nil, notFound("there is no rule /%s/%s", path.Namespace, path.Name)
			}
			if !a.hasTrigger(old) {
				return nil, nil, notFound(
					"the rule's trigger %s is gone; only a rule with a trigger can be set",
					old.Trigger)
			}
			return old.Set(status, time.Now()), nil, nil
		})
	if err != nil {
		return err
	}
	rq.answer(w, http.StatusOK, set)
	return nil
}

// effective returns the rule as it acts: one without its trigger is inactive.
func (a *API) effective(rule *entity.Rule) any {
	if a.hasTrigger(rule) {
		return rule
	}
	return rule.Set(entity.Inactive, time.UnixMilli(rule.Updated))
}

// deletedRule returns a rule as it acts once it is deleted.
func deletedRule(rule *entity.Rule) any { return rule.Set(entity.Inactive, time.Now()) }
