package message

import (
	"encoding/json"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
)

// A Record is an activation as OpenWhisk keeps it: the outcome is a number, times are Unix
// milliseconds.
type Record struct {
	Namespace    string       `json:"namespace"`
	Name         string       `json:"name"`
	Subject      string       `json:"subject"`
	ActivationID string       `json:"activationId"`
	Start        int64        `json:"start"`
	End          int64        `json:"end"`
	Cause        string       `json:"cause,omitempty"`
	Response     Outcome      `json:"response"`
	Logs         []string     `json:"logs"`
	Version      string       `json:"version"`
	Publish      bool         `json:"publish"`
	Annotations  []Annotation `json:"annotations"`
	Duration     int64        `json:"duration"`
}

// An Outcome holds the action's answer, or the reason why there is none.
type Outcome struct {
	StatusCode activation.Status `json:"statusCode"`
	Result     json.RawMessage   `json:"result"`
	Size       int               `json:"size"`
}

// An Annotation says one thing more.
type Annotation struct {
	Key   string `json:"key"`
	Value any    `json:"value"`
}

// NewRecord returns r in OpenWhisk's form. What only the controller knew of the activation comes
// from its request.
func NewRecord(r *activation.Record, asked *Activation) Record {
	logs := r.Logs
	if logs == nil {
		logs = []string{}
	}
	return Record{
		Namespace: r.Namespace, Name: r.Name, Subject: r.Subject, ActivationID: r.ID,
		Cause: asked.Cause, Version: r.Version,
		Start: r.Start.UnixMilli(), End: r.End.UnixMilli(), Duration: r.Duration().Milliseconds(),
		Response: Outcome{r.Response.Status, r.Response.Result, len(r.Response.Result)},
		Logs:     logs, Annotations: annotations(r, asked),
	}
}

func annotations(r *activation.Record, asked *Activation) []Annotation {
	list := []Annotation{{"path", r.Path}, {"kind", r.Kind}}
	if r.Kind != UnknownKind {
		list = append(list, Annotation{"limits", r.Limits}, Annotation{"timeout", r.TimedOut},
			Annotation{"waitTime", r.Wait.Milliseconds()})
	}
	if asked.Cause != "" {
		list = append(list, Annotation{"causedBy", "sequence"})
	}
	if asked.Action.Binding != "" {
		list = append(list, Annotation{"binding", asked.Action.Binding})
	}
	if r.Cold != nil {
		list = append(list, Annotation{"initTime", r.Init.Milliseconds()},
			Annotation{"coldStart", r.Cold})
	}
	return list
}

// UnknownKind is the kind of an action that could not be fetched: nothing is known of its limits
// either.
const UnknownKind = "unknown"

func (r Record) systemError() bool { return r.Response.StatusCode == activation.InternalError }
