package activation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// stored is the record without its methods: JSON by the tags of its fields, so that a field that is added is kept as well.
type stored Record

// MarshalBinary gives the form in which stores keep a record: a line of JSON, then the result as it came, which may be large and is
// not looked at again.
func (r *Record) MarshalBinary() ([]byte, error) {
	head, err := json.Marshal((*stored)(r))
	if err != nil {
		return nil, err
	}
	return append(append(head, '\n'), r.Response.Result...), nil
}

// UnmarshalBinary reads what MarshalBinary wrote.
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
