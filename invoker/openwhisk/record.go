package openwhisk

import (
	"errors"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/outcome"
	"github.com/fastiov/fastiov/invoker/openwhisk/runtime"
	"github.com/fastiov/fastiov/invoker/pool"
)

// blank is a record of the call before anything is known of its end.
func (v *invocation) blank() *activation.Record {
	return &activation.Record{
		ID: v.id, Namespace: v.user.Namespace, Name: v.on.Name, Version: v.on.Version,
		Subject: v.user.Subject, Kind: v.on.Exec.Kind,
		Path: v.on.full[1:], Binding: v.on.binding, Cause: v.cause, CausedBy: v.causedBy,
		Limits: v.on.Limits,
	}
}

// failed is the record of a call that nothing ran for.
func (v *invocation) failed(as activation.Status, why string) *activation.Record {
	r := v.blank()
	r.Start = time.Now()
	r.End, r.Wait, r.Response = r.Start, age(v.accepted), activation.Failed(as, why)
	return r
}

// record returns the record of how the call ended.
func (v *invocation) record(result runtime.Result, err error) *activation.Record {
	r := v.blank()
	outcome.Write(r, v.accepted, v.accepted, result, err)
	return r
}

// refusal returns the error that a caller gets if there was no place for its call, and action and
// start are not at fault.
func refusal(err error) error {
	if err == nil {
		return nil
	}
	var refused *pool.Refused
	var start *pool.StartError
	if errors.As(err, &refused) && refused.TooMany {
		return fail(http.StatusTooManyRequests, "%v", err)
	}
	if errors.As(err, &start) {
		if code := status.Code(start.Err); code == codes.ResourceExhausted ||
			code == codes.Unavailable {
			return fail(http.StatusServiceUnavailable, "%v", err)
		}
	}
	if refused != nil {
		return fail(http.StatusServiceUnavailable, "%v", err)
	}
	return nil
}
