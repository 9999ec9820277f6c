package openwhisk

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/openwhisk/web"
	"github.com/fastiov/fastiov/invoker/store"
)

func (a *API) putTrigger(w http.ResponseWriter, r *http.Request, rq *request) error {
	path, err := rq.ownNamed(r)
	if err != nil {
		return err
	}
	trigger, err := put(a, w, r, rq, path, &a.catalog.triggers, maxEntityBody,
		func(old *entity.Trigger, by entity.TriggerChange) (*entity.Trigger, []byte, error) {
			if old == nil {
				old = &entity.Trigger{Common: entity.Named(path)}
			}
			made, err := old.Changed(by, time.Now())
			return made, nil, err
		})
	if err == nil {
		rq.answer(w, http.StatusOK, a.withRules(trigger))
	}
	return err
}

// withRules returns a trigger with the rules that it fires.
func (a *API) withRules(t *entity.Trigger) any { return t.Shown(a.rulesOf(t)) }

// rulesOf returns the rules that a trigger fires.
func (a *API) rulesOf(t *entity.Trigger) (rules []*entity.Rule) {
	for _, rule := range a.catalog.rules.list(t.Namespace, "") {
		if rule.Trigger == t.Path() {
			rules = append(rules, rule)
		}
	}
	return rules
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

func (f fired) line() string {
	content, err := json.Marshal(f)
	if err != nil {
		panic(err) // texts, a number and a truth value
	}
	return string(content)
}

// fireTrigger invokes the action of every active rule, without waiting for any, and answers with
// the id of the trigger's own record; where no rule is active, with nothing. OpenWhisk answers
// before it invokes anything. Here the answer comes once all that is invoked is promised. The
// record has no end: nothing ran.
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
	body, err := rq.readBody(w, r, entity.MaxArguments)
	if err != nil {
		return err
	}
	payload, err := entity.Fix(false, nil).Under(body)
	if err != nil {
		return err
	}
	headers := entity.Pairs{{Key: web.OwHeaders, Value: web.Told(r, a.directory.Knows).JSON()}}
	arguments, err := entity.Fix(false, trigger.Parameters, headers).Under(body)
	if err != nil {
		return err
	}
	rules := a.rulesOf(trigger)
	if !slices.ContainsFunc(rules, func(r *entity.Rule) bool { return r.Status == entity.Active }) {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	record := &activation.Record{
		ID: store.NewID(), Namespace: trigger.Namespace, Name: trigger.Name,
		Version: trigger.Version, Subject: rq.user.Subject,
		Path: trigger.Namespace + "/" + trigger.Name, Start: rq.accepted,
		Response: activation.Response{Result: payload},
	}
	if err := a.promiseFire(r.Context(), record); err != nil {
		return err
	}
	record.Logs = make([]string, len(rules))
	var all sync.WaitGroup
	for i, rule := range rules {
		// Their promises share an fsync.
		all.Go(func() { record.Logs[i] = a.fire(r, rq, rule, arguments) })
	}
	all.Wait()
	a.cfg.Store.Finish(record.Kept())
	w.Header().Set(web.ActivationID, record.ID)
	answer(w, http.StatusAccepted, map[string]string{"activationId": record.ID})
	return nil
}

// promiseFire makes sure that there will be a record: if this process ends before there is, the
// next says that what it fired may have run.
func (a *API) promiseFire(ctx context.Context, r *activation.Record) error {
	body, err := json.Marshal(note{
		Subject: r.Subject, Namespace: r.Namespace,
		Action: entity.Path{Namespace: r.Namespace, Name: r.Name}, Version: r.Version,
	})
	if err != nil {
		return err
	}
	err = a.accept(ctx, store.Accepted{ID: r.ID, Namespace: r.Namespace, At: r.Start, Sent: true,
		Body: body})
	if err != nil {
		refused := *r
		refused.End = r.Start.Add(age(r.Start)) // the clock may be set meanwhile
		refused.Response = activation.Failed(activation.InternalError, err.Error())
		a.cfg.Store.Finish(refused.Kept())
	}
	return err
}

// fire invokes the action of one rule and says how that went.
func (a *API) fire(r *http.Request, rq *request, rule *entity.Rule, body []byte) (line string) {
	f := fired{Rule: rule.Namespace + "/" + rule.Name, Action: rule.Action.String()[1:]}
	if rule.Status != entity.Active {
		f.StatusCode, f.Error = activation.ApplicationError, fmt.Sprintf(
			// OpenWhisk's words
			"Rule '%s' is inactive, action '%s' was not activated.", f.Rule, f.Action)
		return f.line()
	}
	id, err := a.invokeFor(r, rq, rule.Action, body)
	switch {
	case err != nil:
		f.StatusCode, f.Error = activation.InternalError, err.Error()
		if statusOf(err) < 500 {
			f.StatusCode = activation.ApplicationError
		}
	default:
		f.ActivationID, f.Success = id, true
	}
	return f.line()
}

// invokeFor promises an invocation that a rule asks for.
func (a *API) invokeFor(r *http.Request, rq *request, path entity.Path,
	body []byte) (id string, err error) {
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
	c.bytes = a.holding(rq.user)
	if err := c.bytes.upTo(int64(len(arguments))); err != nil {
		rq.user.Done()
		return "", err
	}
	started, err := a.start(r.Context(), c, 0)
	return started.id, err
}
