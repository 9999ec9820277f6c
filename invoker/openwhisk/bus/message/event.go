package message

import (
	"encoding/json"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
)

// An Event tells the readers of the topic events of an activation that is over.
type Event struct {
	Source    string `json:"source"`
	Body      Usage  `json:"body"`
	Subject   string `json:"subject"`
	Namespace string `json:"namespace"`
	UserID    string `json:"userId"`
	Type      string `json:"eventType"`
	Timestamp int64  `json:"timestamp"`
}

// Usage holds the time and memory that the activation took; its times are milliseconds.
type Usage struct {
	Name         string            `json:"name"` // namespace/package/name
	ActivationID string            `json:"activationId"`
	StatusCode   activation.Status `json:"statusCode"`
	Duration     int64             `json:"duration"`
	WaitTime     int64             `json:"waitTime"`
	InitTime     int64             `json:"initTime"`
	Kind         string            `json:"kind"`
	Conductor    bool              `json:"conductor"`
	Memory       int               `json:"memory"`
	CausedBy     string            `json:"causedBy,omitempty"`
	Size         int               `json:"size"`
	UserStatus   *int              `json:"userDefinedStatusCode,omitempty"`
}

// NewEvent returns the event about r, which by ran for the caller of asked.
func NewEvent(r *activation.Record, asked *Activation, by Invoker, now time.Time) Event {
	usage := Usage{
		Name: r.Path, ActivationID: r.ID, StatusCode: r.Response.Status,
		Duration: r.Duration().Milliseconds(),
		WaitTime: r.Wait.Milliseconds(), InitTime: r.Init.Milliseconds(), Kind: r.Kind,
		Memory: r.Limits.MemoryMB,
		Size:   len(r.Response.Result), UserStatus: userStatus(r.Response.Result),
	}
	if asked.Cause != "" {
		usage.CausedBy = "sequence"
	}
	return Event{
		Source: by.String(), Body: usage, Subject: asked.User.Subject,
		Namespace: asked.User.Namespace.Name,
		UserID:    asked.User.Namespace.UUID, Type: "Activation", Timestamp: now.UnixMilli(),
	}
}

// userStatus returns the statusCode that a web action put into its result or its error; one that is
// not a number counts as 400.
func userStatus(result json.RawMessage) *int {
	var answer struct {
		StatusCode json.RawMessage `json:"statusCode"`
		Error      json.RawMessage `json:"error"`
	}
	if json.Unmarshal(result, &answer) != nil {
		return nil
	}
	given := answer.StatusCode
	var failed struct {
		StatusCode json.RawMessage `json:"statusCode"`
	}
	if json.Unmarshal(answer.Error, &failed) == nil && failed.StatusCode != nil {
		given = failed.StatusCode
	}
	if given == nil {
		return nil
	}
	code := 400
	var number int
	if json.Unmarshal(given, &number) == nil {
		code = number
	}
	return &code
}
