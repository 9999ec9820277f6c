package oci

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// A Reason is why an image was refused, in as much detail as a caller may learn.
type Reason string

// The reasons for a refusal.
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

// Reasons lists them all.
var Reasons = []Reason{
	NotFound, Unauthorized, NotAllowed, TooLarge, NotItself, Unusable, Late, Unreachable,
}

// A Refusal holds the image that was refused and why: Terse for callers, Error for the operator.
type Refusal struct {
	Image  string
	Reason Reason
	Err    error
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("the image %s could not be pulled: %s: %v", r.Image, r.Reason, r.Err)
}

func (r *Refusal) Unwrap() error { return r.Err }

// Terse returns the reason alone, since the rest may contain what only the operator may know.
func (r *Refusal) Terse() string {
	return fmt.Sprintf("the image %s could not be pulled: %s", r.Image, r.Reason)
}

// Passing reports whether the next attempt may succeed.
func (r *Refusal) Passing() bool { return r.Reason == Late || r.Reason == Unreachable }

// NotHere is the refusal of an image that the node does not have and must not pull.
func NotHere(image string) error {
	return refusal(image, refuse(NotFound, "it is not on this node, whose --image-pull-policy is "+
		"Never; `fastiov image pull` or `fastiov image load` brings it"))
}

// InWordsOf returns err with the image's name as the caller wrote it, if err is a refusal.
func InWordsOf(ref string, err error) error {
	var refused *Refusal
	if !errors.As(err, &refused) {
		return err
	}
	return &Refusal{ref, refused.Reason, refused.Err}
}

// because is an error with its reason, before it becomes a Refusal.
type because struct {
	Reason
	error
}

func (b because) Unwrap() error { return b.error }

func refuse(why Reason, format string, args ...any) error {
	return because{why, fmt.Errorf(format, args...)}
}

// refusal gives a known reason to err, which occurred while the image was pulled. Our own failures,
// such as a full disk, stay as they are.
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

// errOurs marks failures that neither an image nor its registry caused.
var errOurs = errors.New("on this node")

func ours(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errOurs, err)
}
