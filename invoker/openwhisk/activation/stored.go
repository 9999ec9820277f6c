package activation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fastiov/fastiov/invoker/coldstart"
	"github.com/fastiov/fastiov/invoker/store"
)

// Kept returns the record as a store keeps it. The record must not change any more.
func (r *Record) Kept() *store.Record {
	index := store.Indexed{ID: r.ID, Namespace: r.Namespace, Name: r.ListName(), Start: r.Start}
	return &store.Record{Indexed: index, Body: r}
}

// Size implements store.Body.
func (r *Record) Size() int {
	const fixed = 1536
	size := fixed + len(r.Response.Result)
	for _, line := range r.Logs {
		size += len(line) + 16
	}
	if r.Cold != nil {
		size += 128 * len(r.Cold.Spans)
	}
	return size
}

// ListName returns the name by which lists find the record: package/action for an action in a
// package, where package is the binding if it was called through one; else its plain name.
func (r *Record) ListName() string {
	if _, binding, found := strings.Cut(r.Binding, "/"); found {
		return binding + "/" + r.Name
	}
	_, local, _ := strings.Cut(r.Path, "/")
	if pkg, name, found := strings.Cut(local, "/"); found && !strings.Contains(name, "/") {
		return pkg + "/" + r.Name
	}
	return r.Name
}

// AppendBinary appends the form in which stores keep a record: a line of JSON by the tags of its
// fields, empty ones left out, and then the result as it came, which may be large and is not looked
// at again. It is written by hand for the same reason as the client's form.
func (r *Record) AppendBinary(b []byte) ([]byte, error) {
	b = quoted(append(b, `{"id":`...), r.ID)
	for _, text := range [...]struct{ name, value string }{
		{`,"ns":`, r.Namespace}, {`,"n":`, r.Name}, {`,"v":`, r.Version}, {`,"sub":`, r.Subject},
		{`,"k":`, r.Kind},
		{`,"p":`, r.Path}, {`,"b":`, r.Binding}, {`,"of":`, r.Cause}, {`,"cb":`, r.CausedBy},
	} {
		if text.value != "" {
			b = quoted(append(b, text.name...), text.value)
		}
	}
	if r.Limits != (Limits{}) {
		b = r.Limits.append(append(b, `,"lim":`...))
	}
	for _, moment := range [...]struct {
		name string
		time time.Time
	}{{`,"t":"`, r.Start}, {`,"e":"`, r.End}} {
		if !moment.time.IsZero() {
			b = append(moment.time.AppendFormat(append(b, moment.name...), time.RFC3339Nano), '"')
		}
	}
	for _, number := range [...]struct {
		name  string
		value int64
	}{{`,"w":`, int64(r.Wait)}, {`,"i":`, int64(r.Init)}} {
		if number.value != 0 {
			b = strconv.AppendInt(append(b, number.name...), number.value, 10)
		}
	}
	if r.TimedOut {
		b = append(b, `,"to":true`...)
	}
	if r.Response.Status != Success {
		b = append(strconv.AppendInt(append(b, `,"r":{"s":`...), int64(r.Response.Status), 10), '}')
	}
	if len(r.Logs) > 0 {
		b = quotedAll(append(b, `,"l":`...), r.Logs)
	}
	if r.Cold != nil || r.Composed != nil {
		rest, err := json.Marshal(struct {
			Cold     *coldstart.Record `json:"c,omitempty"`
			Composed *Composed         `json:"co,omitempty"`
		}{r.Cold, r.Composed})
		if err != nil {
			return b, err
		}
		b = append(append(b, ','), rest[1:len(rest)-1]...)
	}
	return append(append(b, "}\n"...), r.Response.Result...), nil
}

// MarshalBinary gives what AppendBinary appends.
func (r *Record) MarshalBinary() ([]byte, error) { return r.AppendBinary(nil) }

// UnmarshalBinary reads what AppendBinary wrote.
func (r *Record) UnmarshalBinary(data []byte) error {
	head, result, found := bytes.Cut(data, []byte{'\n'})
	if !found {
		return errors.New("a stored record without its end")
	}
	type stored Record // without its methods
	var s stored
	if err := json.Unmarshal(head, &s); err != nil {
		return fmt.Errorf("a stored record: %w", err)
	}
	if len(result) > 0 {
		s.Response.Result = bytes.Clone(result)
	}
	*r = Record(s)
	return nil
}
