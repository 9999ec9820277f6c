package entity

import (
	"encoding/json"
	"time"
)

// A Trigger is an event that rules tie to actions.
type Trigger struct {
	Common
	Parameters Pairs    `json:"parameters"`
	Limits     struct{} `json:"limits"`
}

// A TriggerChange is the body of a PUT.
type TriggerChange struct {
	CommonChange
	Parameters *Pairs `json:"parameters"`
}

// Changed returns the trigger that a change makes of t.
func (t *Trigger) Changed(by TriggerChange, now time.Time) (*Trigger, error) {
	next := *t
	if err := next.change(by.CommonChange, now); err != nil {
		return nil, err
	}
	next.Parameters = given(by.Parameters, next.Parameters)
	if feed, is := next.Annotations.Get("feed"); is {
		var name string
		if json.Unmarshal(feed, &name) != nil {
			return nil, bad("the annotation feed is %.300s; it must be the name of an action", feed)
		}
		if _, err := ParsePath(name, t.Namespace); err != nil {
			return nil, err
		}
	}
	return &next, next.Parameters.check("parameters")
}

// Shown is the trigger for GET, with the rules that it fires by their full names.
func (t *Trigger) Shown(rules []*Rule) any {
	type tie struct {
		Action Path   `json:"action"`
		Status Status `json:"status"`
	}
	shown := struct {
		*Trigger
		Rules map[string]tie `json:"rules,omitempty"`
	}{t, map[string]tie{}}
	for _, r := range rules {
		shown.Rules[r.Namespace+"/"+r.Name] = tie{r.Action, r.Status}
	}
	return shown
}

// Summary is a list's row.
func (t *Trigger) Summary() any { return t.Common }

// Status is whether a rule fires.
type Status string

const (
	Active   Status = "active"
	Inactive Status = "inactive"
)

// ParseStatus reads a status.
func ParseStatus(text string) (Status, error) {
	if s := Status(text); s == Active || s == Inactive {
		return s, nil
	}
	return "", bad("status is %.40q; it must be active or inactive", text)
}

// A Rule runs an action when its trigger fires.
type Rule struct {
	Common
	Status  Status `json:"status"`
	Trigger Path   `json:"trigger"`
	Action  Path   `json:"action"`
}

// A RuleChange is the body of a PUT. Clients send an empty status, which changes none.
type RuleChange struct {
	CommonChange
	Status  string `json:"status"`
	Trigger *Path  `json:"trigger"`
	Action  *Path  `json:"action"`
}

// Changed returns the rule that a change makes of r; a new one is active unless the change says
// otherwise.
func (r *Rule) Changed(by RuleChange, now time.Time) (*Rule, error) {
	next := *r
	if err := next.change(by.CommonChange, now); err != nil {
		return nil, err
	}
	if by.Trigger != nil {
		next.Trigger = by.Trigger.In(by.Trigger.Namespace, r.Namespace)
	}
	if by.Action != nil {
		next.Action = by.Action.In(by.Action.Namespace, r.Namespace)
	}
	switch {
	case next.Trigger.Name == "" || next.Action.Name == "":
		return nil, bad("a rule needs a trigger and an action")
	case next.Trigger.Package != "":
		return nil, bad("%s cannot be a trigger: triggers are in no package", next.Trigger)
	case next.Trigger.Namespace != r.Namespace:
		return nil, Refuse(403, "%s is in another namespace; a rule is about a trigger of its own",
			next.Trigger)
	}
	if r.IsNew() {
		next.Status = Active
	}
	if by.Status != "" {
		status, err := ParseStatus(by.Status)
		if err != nil {
			return nil, err
		}
		next.Status = status
	}
	return &next, nil
}

// Set returns the rule with another status.
func (r *Rule) Set(status Status, now time.Time) *Rule {
	next := *r
	next.Status, next.Updated = status, now.UnixMilli()
	return &next
}

// Summary is a list's row, which is the whole rule.
func (r *Rule) Summary() any { return r }
