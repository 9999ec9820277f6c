package openwhisk

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/invoker/activation"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// blank is a record of the call before anything is known of its end.
func (v *invocation) blank() *activation.Record {
	return &activation.Record{
		ID: v.id, Namespace: v.user.Namespace, Name: v.on.Name, Version: v.on.Version, Subject: v.user.Subject, Kind: v.on.Exec.Kind,
		Path: v.on.full[1:], Binding: v.on.binding, Cause: v.cause, CausedBy: v.causedBy, Limits: v.on.Limits,
	}
}

// failed is the record of a call that nothing ran for.
func (v *invocation) failed(as activation.Status, why string) *activation.Record {
	r := v.blank()
	r.Start = time.Now()
	r.End, r.Wait, r.Response = r.Start, r.Start.Sub(v.accepted), activation.Failed(as, why)
	return r
}

// record tells how the call ended: now, unless the sandbox says when.
func (v *invocation) record(result pool.Result, err error) *activation.Record {
	r := v.blank()
	r.Response, r.TimedOut = v.response(result, err)
	r.Start = time.Now()
	r.End = r.Start
	if run := result.Run; run != nil {
		r.Start, r.End = time.Unix(0, run.BeginNs), time.Unix(0, run.EndNs)
	} else if !result.Placed.IsZero() && !result.Cold {
		r.Start = result.Placed
	}
	if result.Start != nil {
		r.Cold = v.coldStart(result, r.End)
		if init := initSpan(r.Cold.Spans); init != nil {
			r.Init, r.Start = init.End.Sub(init.Begin), init.Begin
		}
	}
	r.Wait = max(r.Start.Sub(v.accepted), 0)
	r.Logs = v.logs(result)
	return r
}

// response is the activation's answer, and whether it took too long.
func (v *invocation) response(result pool.Result, err error) (activation.Response, bool) {
	var call *pool.CallError
	switch {
	case errors.As(err, &call):
		return v.failedCall(call)
	case err != nil:
		return activation.Failed(activation.InternalError, err.Error()), false
	case v.answer != nil:
		return *v.answer, false
	default:
		return activation.ClassifyInit(int(result.Start.InitStatus), result.Start.InitReply), false
	}
}

// failedCall tells whose fault a failed call to the node was: the action's where the node says that it cannot be started anywhere,
// or where its sandbox ended or ran out of time while it ran; else ours.
func (v *invocation) failedCall(call *pool.CallError) (activation.Response, bool) {
	code := status.Code(call.Err)
	message := status.Convert(call.Err).Message()
	switch {
	case call.Phase == pool.Running && code == codes.DeadlineExceeded:
		return activation.TimedOut(v.on.Limits.TimeoutMs), true
	case call.Phase == pool.Running && code != codes.Unavailable && code != codes.Canceled:
		return activation.Failed(activation.DeveloperError, "The action did not produce a valid response and exited unexpectedly: "+message), false
	case call.Phase == pool.Starting && code == codes.InvalidArgument:
		return activation.Failed(activation.DeveloperError, "The action cannot be started: "+message), false
	default:
		return activation.Failed(activation.InternalError, call.Error()), false
	}
}

// refusal is what a caller is told where nothing was wrong with the action or its start, but there was no place for it.
func refusal(err error) error {
	if err == nil {
		return nil
	}
	var refused *pool.Refused
	var call *pool.CallError
	if errors.As(err, &refused) && refused.TooMany {
		return fail(http.StatusTooManyRequests, "%v", err)
	}
	if errors.As(err, &call) && call.Phase == pool.Starting {
		if code := status.Code(call.Err); code == codes.ResourceExhausted || code == codes.Unavailable {
			return fail(http.StatusServiceUnavailable, "%v", err)
		}
	}
	if refused != nil {
		return fail(http.StatusServiceUnavailable, "%v", err)
	}
	return nil
}

// coldStart joins the invoker's own stages with the node's: queue until the node was asked, and the run as the first byte.
func (v *invocation) coldStart(result pool.Result, end time.Time) *activation.ColdStart {
	start := result.Start
	var tl timeline.Timeline
	tl.Add(timeline.Span{Stage: timeline.Queue, Begin: v.accepted, End: result.Placed})
	for _, s := range start.Spans {
		tl.Add(timeline.Span{
			Stage: timeline.Stage(s.Stage), Begin: time.Unix(0, s.BeginNs), End: time.Unix(0, s.EndNs), Error: time.Duration(s.ErrorNs),
		})
	}
	if run := result.Run; run != nil {
		tl.Add(timeline.Span{Stage: timeline.FirstByte, Begin: time.Unix(0, run.BeginNs), End: time.Unix(0, run.EndNs)})
	}
	cold := &activation.ColdStart{
		Sandbox: result.Sandbox, Driver: start.Driver, VF: start.Vf, MAC: start.Mac, Address: start.Address,
		Answered: result.Run != nil, Begin: v.accepted, End: end, Spans: tl.Spans(),
	}
	cold.Attribute()
	return cold
}

func initSpan(spans []timeline.Span) *timeline.Span {
	for i, s := range spans {
		if s.Stage == timeline.AppInit {
			return &spans[i]
		}
	}
	return nil
}

// logs are the lines of init and run in OpenWhisk's form, cut off at the action's limit.
func (v *invocation) logs(result pool.Result) (logs []string) {
	left := v.on.Limits.LogsMB << 20
	if left == 0 {
		return nil
	}
	for _, lines := range [...][]*api.LogLine{result.Start.GetLogs(), result.Run.GetLogs()} {
		for _, line := range lines {
			if left -= len(line.Text); left < 0 {
				return append(logs, logLine(time.Now(), "stderr",
					fmt.Sprintf("Logs were truncated because the total bytes size exceeds the limit of %d bytes.", v.on.Limits.LogsMB<<20)))
			}
			logs = append(logs, logLine(time.Unix(0, line.TimeNs), line.Stream, line.Text))
		}
	}
	return logs
}

// logLine is the time in 30 columns, the stream and the text.
func logLine(at time.Time, stream, text string) string {
	b := make([]byte, 0, 40+len(text))
	for b = at.UTC().AppendFormat(b, time.RFC3339Nano); len(b) < 30; {
		b = append(b, ' ')
	}
	return string(append(append(append(append(b, ' '), stream...), ": "...), text...))
}
