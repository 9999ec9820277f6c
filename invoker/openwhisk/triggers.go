package openwhisk

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/fastiov/fastiov/invoker/activation"
	"github.com/fastiov/fastiov/invoker/entity"
)

func (a *API) putTrigger(w http.ResponseWriter, r *http.Request, rq *request) error {
	path, err := rq.ownNamed(r)
	if err != nil {
		return err
	}
	overwrite, err := flag(r.URL.Query(), "overwrite", false)
	if err != nil {
		return err
	}
	var by entity.TriggerChange
	if err := readInto(w, r, maxEntityBody, &by); err != nil {
		return err
	}
	put, err := change(r.Context(), a.catalog, &a.catalog.triggers, path.Namespace, path.Name, func(old *entity.Trigger) (*entity.Trigger, []byte, error) {
		if err := overwriting(old != nil, overwrite, "trigger", path.Name); err != nil {
			return nil, nil, err
		}
		if old == nil {
			old = &entity.Trigger{Common: entity.Named(path)}
		}
		made, err := old.Changed(by, time.Now())
		return made, nil, err
	})
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, put.Shown(a.rulesOf(put)))
	return nil
}

// rulesOf are the rules that a trigger fires.
func (a *API) rulesOf(t *entity.Trigger) (rules []*entity.Rule) {
	for _, rule := range a.catalog.rules.list(t.Namespace, "") {
		if rule.Trigger == t.Path() {
			rules = append(rules, rule)
		}
	}
	return rules
}

func (a *API) getTrigger(w http.ResponseWriter, r *http.Request, rq *request) error {
	path, err := rq.ownNamed(r)
	if err != nil {
		return err
	}
	found, err := a.catalog.triggers.find(path.Namespace, path.Name)
	if err == nil {
		answer(w, http.StatusOK, found.Shown(a.rulesOf(found)))
	}
	return err
}

func (a *API) deleteTrigger(w http.ResponseWriter, r *http.Request, rq *request) error {
	path, err := rq.ownNamed(r)
	if err != nil {
		return err
	}
	deleted, err := remove(r.Context(), a.catalog, &a.catalog.triggers, path.Namespace, path.Name, func(*entity.Trigger) error { return nil })
	if err == nil {
		answer(w, http.StatusOK, deleted.Shown(a.rulesOf(deleted)))
	}
	return err
}

func (a *API) listTriggers(w http.ResponseWriter, r *http.Request, rq *request) error {
	namespace, err := rq.own()
	if err != nil {
		return err
	}
	return answerList(w, r, "triggers", a.catalog.triggers.list(namespace, ""), (*entity.Trigger).Summary)
}

// A fired rule is a line in the log of its trigger's activation.
type fired struct {
	Rule         string            `json:"rule"`
	Action       string            `json:"action"`
	StatusCode   activation.Status `json:"statusCode"`
	Success      bool              `json:"success"`
	ActivationID string            `json:"activationId,omitempty"`
	Error        string            `json:"error,omitempty"`
}

// fireTrigger invokes the action of every active rule, without waiting for any, and answers with the id of the trigger's own record;
// where no rule is active, with nothing.
func (a *API) fireTrigger(w http.ResponseWriter, r *http.Request, rq *request) error {
	path, err := rq.ownNamed(r)
	if err != nil {
		return err
	}
	if err := rq.user.Fire(rq.accepted, rq.user.Limits); err != nil {
		return err
	}
	trigger, err := a.catalog.triggers.find(path.Namespace, path.Name)
	if err != nil {
		return err
	}
	body, err := readBody(w, r, entity.MaxArguments)
	if err != nil {
		return err
	}
	arguments, err := entity.Fix(false, trigger.Parameters).Under(body)
	if err != nil {
		return err
	}
	record := &activation.Record{
		ID: activation.NewID(), Namespace: trigger.Namespace, Name: trigger.Name, Version: trigger.Version, Subject: rq.user.Subject,
		Path: trigger.Namespace + "/" + trigger.Name, Start: rq.accepted, Response: activation.Response{Result: arguments},
	}
	active := false
	for _, rule := range a.rulesOf(trigger) {
		active = active || rule.Status == entity.Active
		line, err := json.Marshal(a.fire(r, rq, rule, arguments, record.ID))
		if err != nil {
			return err
		}
		record.Logs = append(record.Logs, string(line))
	}
	if !active {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	record.End = time.Now()
	a.cfg.Store.Finish(record)
	w.Header().Set(activationID, record.ID)
	answer(w, http.StatusAccepted, map[string]string{"activationId": record.ID})
	return nil
}

func (a *API) fire(r *http.Request, rq *request, rule *entity.Rule, body []byte, cause string) fired {
	f := fired{Rule: rule.Namespace + "/" + rule.Name, Action: rule.Action.String()[1:]}
	if rule.Status != entity.Active {
		f.StatusCode, f.Error = activation.ApplicationError, "the rule "+f.Rule+" is not active: "+f.Action+" was not invoked"
		return f
	}
	id, err := a.invokeFor(r, rq, rule.Action, body, cause)
	switch {
	case err != nil:
		f.StatusCode, f.Error = activation.InternalError, err.Error()
		if statusOf(err) < 500 {
			f.StatusCode = activation.ApplicationError
		}
	default:
		f.ActivationID, f.Success = id, true
	}
	return f
}

// invokeFor promises an invocation that a rule asks for.
func (a *API) invokeFor(r *http.Request, rq *request, path entity.Path, body []byte, cause string) (id string, err error) {
	on, err := a.invocable(rq.user, path)
	if err != nil {
		return "", err
	}
	arguments, err := on.fixed.Under(body)
	if err != nil {
		return "", err
	}
	if err := rq.user.Call(rq.accepted, rq.user.Limits); err != nil {
		return "", err
	}
	c := rq.call(on, arguments)
	c.cause = cause
	started, err := a.start(r.Context(), c, 0)
	return started.id, err
}
