package activation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// stored is the record without its methods: JSON by the tags of its fields, so that a field that is added is kept as well.
type stored Record

// AppendBinary appends the form in which stores keep a record: a line of JSON, then the result as it came, which may be large and is not
// looked at again.
func (r *Record) AppendBinary(b []byte) ([]byte, error) {
	head, err := json.Marshal((*stored)(r))
	if err != nil {
		return b, err
	}
	b = append(append(b, head...), '\n')
	return append(b, r.Response.Result...), nil
}

// MarshalBinary gives what AppendBinary appends.
func (r *Record) MarshalBinary() ([]byte, error) { return r.AppendBinary(nil) }

// UnmarshalBinary reads what AppendBinary wrote.
func (r *Record) UnmarshalBinary(data []byte) error {
	head, result, found := bytes.Cut(data, []byte{'\n'})
	if !found {
		return errors.New("a stored record without its end")
	}
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
