package oci

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// A Reason is why an image was not taken, in as many words as a caller is told.
type Reason string

// The reasons.
const (
	NotFound     Reason = "not found"
	Unauthorized Reason = "unauthorized"
	NotAllowed   Reason = "registry not allowed"
	TooLarge     Reason = "too large"
	NotItself    Reason = "not what its digest says"
	Unusable     Reason = "cannot be started"
	Late         Reason = "took too long"
	Unreachable  Reason = "registry does not answer"
)

// Reasons are all of them.
var Reasons = []Reason{
	NotFound, Unauthorized, NotAllowed, TooLarge, NotItself, Unusable, Late, Unreachable,
}

// A Refusal says which image was not taken and why: Terse for callers, Error for the operator.
type Refusal struct {
	Image  string
	Reason Reason
	Err    error
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("the image %s could not be pulled: %s: %v", r.Image, r.Reason, r.Err)
}

func (r *Refusal) Unwrap() error { return r.Err }

// Terse tells no more than the reason: the rest may name what only the operator is to know.
func (r *Refusal) Terse() string {
	return fmt.Sprintf("the image %s could not be pulled: %s", r.Image, r.Reason)
}

// Passing says that the next attempt may well succeed.
func (r *Refusal) Passing() bool { return r.Reason == Late || r.Reason == Unreachable }

// InWordsOf is err with the image's name as a caller wrote it, if err is a refusal.
func InWordsOf(ref string, err error) error {
	var refused *Refusal
	if !errors.As(err, &refused) {
		return err
	}
	return &Refusal{ref, refused.Reason, refused.Err}
}

// because is an error with its reason, on its way to a Refusal.
type because struct {
	Reason
	error
}

func (b because) Unwrap() error { return b.error }

func refuse(why Reason, format string, args ...any) error {
	return because{why, fmt.Errorf(format, args...)}
}

// refusal makes err, met while the image was pulled, one of a known reason. What is our own fault,
// such as a full disk, stays what it is.
func refusal(image string, err error) error {
	var known because
	var status *transport.Error
	switch {
	case err == nil || errors.Is(err, context.Canceled) || errors.Is(err, errOurs):
		return err
	case errors.As(err, &known):
		return &Refusal{image, known.Reason, err}
	case errors.Is(err, context.DeadlineExceeded):
		return &Refusal{image, Late, err}
	case errors.As(err, &status):
		return &Refusal{image, reasonOf(status.StatusCode), err}
	}
	return &Refusal{image, Unreachable, err}
}

func reasonOf(status int) Reason {
	switch status {
	case http.StatusNotFound:
		return NotFound
	case http.StatusUnauthorized, http.StatusForbidden:
		return Unauthorized
	}
	return Unreachable
}

// errOurs marks what is no fault of an image or of its registry.
var errOurs = errors.New("on this node")

func ours(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errOurs, err)
}
