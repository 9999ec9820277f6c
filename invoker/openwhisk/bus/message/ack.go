package message

import (
	"encoding/json"
	"fmt"
)

// An Ack is the acknowledgement that an invoker owes a controller for each Activation. There are
// three, which differ in what they hold:
//
//	Result      what a blocking caller waits for
//	Completion  the invoker has room again
//	Combined    both at once
type Ack struct {
	Transaction  Transaction `json:"transid"`
	Response     *Response   `json:"response,omitempty"`
	ActivationID string      `json:"activationId,omitempty"`
	SystemError  *bool       `json:"isSystemError,omitempty"`
	Instance     *Invoker    `json:"instance,omitempty"`
}

// A Response is the record of the activation without logs, or its id alone.
type Response struct {
	Record *Record
	ID     string
}

func (r Response) MarshalJSON() ([]byte, error) {
	if r.Record != nil {
		return Encode(r.Record), nil
	}
	return Encode(r.ID), nil
}

func (r *Response) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, &r.ID)
	}
	r.Record = &Record{}
	if err := json.Unmarshal(b, r.Record); err != nil {
		return err
	}
	r.ID = r.Record.ActivationID
	return nil
}

// Result acknowledges the result alone.
func Result(t Transaction, r Record) Ack {
	r.Logs = []string{}
	return Ack{Transaction: t, Response: &Response{Record: &r, ID: r.ActivationID}}
}

// Completion acknowledges that the activation is over.
func Completion(t Transaction, r Record, by Invoker) Ack {
	system := r.systemError()
	return Ack{Transaction: t, ActivationID: r.ActivationID, SystemError: &system, Instance: &by}
}

// Combined acknowledges both.
func Combined(t Transaction, r Record, by Invoker) Ack {
	ack, system := Result(t, r), r.systemError()
	ack.SystemError, ack.Instance = &system, &by
	return ack
}

// Shrunk returns the acknowledgement with the id in the place of the record: for callers who do not
// wait, and for records that are too large.
func (a Ack) Shrunk() Ack {
	if a.Response != nil {
		a.Response = &Response{ID: a.Response.ID}
	}
	return a
}

// DecodeAck reads an acknowledgement, as a controller does.
func DecodeAck(b []byte) (Ack, error) {
	var a Ack
	if err := json.Unmarshal(b, &a); err != nil {
		return a, err
	}
	if a.Instance != nil && a.Instance.InstanceType != "invoker" {
		return a, fmt.Errorf("instance.instanceType is %q, not invoker", a.Instance.InstanceType)
	}
	if a.Response == nil && (a.Instance == nil || a.ActivationID == "") {
		return a, fmt.Errorf("there is neither a response nor an instance with an activationId")
	}
	return a, nil
}
