package entity

import (
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json"
)

// A Refusal is the error of a request that cannot be met; Why is for the caller.
type Refusal struct {
	Status int // of HTTP
	Why    string
}

func (r *Refusal) Error() string { return r.Why }

// Refuse makes a Refusal.
func Refuse(status int, format string, args ...any) error {
	return &Refusal{status, fmt.Sprintf(format, args...)}
}

func bad(format string, args ...any) error { return Refuse(http.StatusBadRequest, format, args...) }

// Decode reads the JSON of a request, which must be valid as a whole.
func Decode(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return malformed(err)
	}
	return nil
}

func malformed(err error) error { return bad("the request content is malformed: %v", err) }
