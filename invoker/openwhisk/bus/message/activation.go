package message

import (
	"encoding/json"
	"fmt"
	"regexp"
)

// An Activation asks an invoker to run an action. Its content holds the parameters of package and
// action already, under the caller's.
type Activation struct {
	Transaction Transaction `json:"transid"`
	Action      Name        `json:"action"`
	// The revision of the action's document; empty if the controller does not know it.
	Revision   string          `json:"revision"`
	User       Identity        `json:"user"`
	ID         string          `json:"activationId"`
	Controller Controller      `json:"rootControllerIndex"`
	Blocking   bool            `json:"blocking"`
	Content    json.RawMessage `json:"content,omitempty"`
	// The keys of content that go to /init as environment.
	InitArgs []string `json:"initArgs"`
	// For a key of content, the algorithm that its value is encrypted with.
	LockedArgs map[string]string `json:"lockedArgs"`
	Cause      string            `json:"cause,omitempty"`
}

// A Name says where an entity is: path is a namespace, or namespace/package.
type Name struct {
	Path    string `json:"path"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Binding string `json:"binding,omitempty"`
}

// String is namespace/package/name, which is the id of the entity's document too.
func (n Name) String() string { return n.Path + "/" + n.Name }

// An Identity is on whose behalf an action runs.
type Identity struct {
	Subject   string `json:"subject"`
	Namespace struct {
		Name string `json:"name"`
		UUID string `json:"uuid"`
	} `json:"namespace"`
	AuthKey struct {
		APIKey string `json:"api_key,omitempty"`
	} `json:"authkey"`
	Limits struct {
		StoreActivations *bool `json:"storeActivations,omitempty"`
	} `json:"limits"`
}

// Stores reports whether the namespace's activations are to be kept.
func (i Identity) Stores() bool {
	return i.Limits.StoreActivations == nil || *i.Limits.StoreActivations
}

// A Controller names the controller that is owed the acknowledgement; its topic is named for it.
type Controller struct {
	Name         string `json:"asString"`
	InstanceType string `json:"instanceType"`
}

var (
	activationID = regexp.MustCompile(`^[0-9A-Za-z]{32}$`)
	controller   = regexp.MustCompile(`^[0-9A-Za-z._-]{1,128}$`)
)

// DecodeActivation reads a message of an invoker's topic. It returns an error if no controller can
// be told of it: it names no controller, no activation or no action. For all other faults of an
// Activation its controller is owed an answer.
func DecodeActivation(b []byte) (*Activation, error) {
	var a Activation
	if err := json.Unmarshal(b, &a); err != nil {
		return nil, err
	}
	switch {
	case !activationID.MatchString(a.ID):
		return nil, fmt.Errorf("activationId is %q; it must be 32 letters and digits", a.ID)
	case !controller.MatchString(a.Controller.Name):
		return nil, fmt.Errorf(
			"rootControllerIndex.asString is %q; it must be a part of a topic's name",
			a.Controller.Name)
	case a.Action.Path == "" || a.Action.Name == "":
		return nil, fmt.Errorf("action has path %q and name %q; both are needed",
			a.Action.Path, a.Action.Name)
	case a.User.Namespace.Name == "":
		return nil, fmt.Errorf("user.namespace.name is missing")
	}
	if a.Transaction.ID == "" {
		return nil, fmt.Errorf("transid is missing")
	}
	return &a, nil
}
