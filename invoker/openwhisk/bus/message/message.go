// Package message holds the messages of an OpenWhisk cluster through Kafka: the JSON of every topic
// an invoker reads or writes on the classic path.
//
//	invokerN           in   Activation
//	completedC         out  Ack: Result, Completion or Combined
//	health             out  Ping
//	cacheInvalidation  in   Invalidation
//	events             out  Event
//
// Incoming messages are read with tolerance; outgoing ones are exactly those that the cluster's own
// invoker writes.
package message

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Encode returns the JSON of a message. Results and logs are other people's text: nothing in them
// is escaped for HTML, which would make a result that just fits too large.
func Encode(message any) []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(message); err != nil {
		panic(err) // strings, numbers, and JSON that was checked when it came in
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// A Transaction is [id, ms] or a longer array; it is handed on as it came.
type Transaction struct {
	ID    string
	Start time.Time // when the controller got the request
	given json.RawMessage
}

// NewTransaction starts a transaction of our own.
func NewTransaction(id string, start time.Time) Transaction {
	return Transaction{ID: id, Start: start}
}

func (t Transaction) MarshalJSON() ([]byte, error) {
	if t.given != nil {
		return t.given, nil
	}
	return Encode([]any{t.ID, t.Start.UnixMilli()}), nil
}

// UnmarshalJSON never fails: an activation whose transaction cannot be read runs like any other, in
// one that is called unknown.
func (t *Transaction) UnmarshalJSON(b []byte) error {
	var parts []json.RawMessage
	var id string
	var ms float64
	*t = NewTransaction("sid_unknown", time.Now())
	if json.Unmarshal(b, &parts) != nil || len(parts) < 2 || json.Unmarshal(parts[0], &id) != nil ||
		json.Unmarshal(parts[1], &ms) != nil {
		return nil
	}
	if start := time.UnixMilli(int64(ms)); start.Before(t.Start) {
		t.Start = start
	}
	t.ID, t.given = id, bytes.Clone(b)
	return nil
}

// An Invoker holds the names of an invoker, and the memory it offers.
type Invoker struct {
	Instance            int       `json:"instance"`
	UserMemory          Megabytes `json:"userMemory"`
	InstanceType        string    `json:"instanceType"`
	Tags                []string  `json:"tags"`
	DedicatedNamespaces []string  `json:"dedicatedNamespaces"`
}

// NewInvoker is an invoker without tags, for every namespace.
func NewInvoker(instance, memoryMB int) Invoker {
	return Invoker{Instance: instance, UserMemory: Megabytes(memoryMB), InstanceType: "invoker",
		Tags: []string{}, DedicatedNamespaces: []string{}}
}

func (i Invoker) String() string { return "invoker" + strconv.Itoa(i.Instance) }

// Megabytes is written "1024 MB".
type Megabytes int

func (m Megabytes) MarshalJSON() ([]byte, error) {
	return Encode(fmt.Sprintf("%d MB", int(m))), nil
}

func (m *Megabytes) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	_, err := fmt.Sscanf(text, "%d MB", (*int)(m))
	return err
}

// A Ping says that an invoker lives and takes activations. A controller that hears none for ten
// seconds sends it nothing more.
type Ping struct {
	Name    Invoker `json:"name"`
	Enabled bool    `json:"isEnabled"`
}

// An Invalidation says that a document changed.
type Invalidation struct {
	Key struct {
		Main      string `json:"mainId"` // the document's id
		Secondary string `json:"secondaryId,omitempty"`
	} `json:"key"`
	Instance string `json:"instanceId"`
}

// DecodeInvalidation reads what the topic cacheInvalidation brings.
func DecodeInvalidation(b []byte) (Invalidation, error) {
	var i Invalidation
	if err := json.Unmarshal(b, &i); err != nil {
		return i, err
	}
	if i.Key.Main == "" {
		return i, fmt.Errorf("key.mainId is missing")
	}
	return i, nil
}
