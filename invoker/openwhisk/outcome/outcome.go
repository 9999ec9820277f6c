// Package outcome writes into an activation's record how its way through a sandbox ended: whose
// fault it was if it failed, what it logged, how long which stage took.
package outcome

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/invoker/coldstart"
	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/runtime"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// Write fills in the rest of r from result and err, which say how the run ended. r has its names
// and limits already. asked is when the caller sent the call, and accepted is when this invoker
// took it.
func Write(r *activation.Record, asked, accepted time.Time, result runtime.Result, err error) {
	r.Response, r.TimedOut = response(result.Answer, err, r.Limits)
	r.Start = time.Now() // unless the sandbox says when
	r.End = r.Start
	if run := result.Run; run != nil {
		r.Start, r.End = time.Unix(0, run.BeginNs), time.Unix(0, run.EndNs)
	} else if !result.Placed.IsZero() && !result.Cold {
		r.Start = result.Placed
	}
	if result.Start != nil {
		r.Cold = coldstart.Of(accepted, result.Placement, result.Run, r.End)
		if init := initSpan(r.Cold.Spans); init != nil {
			r.Init, r.Start = init.End.Sub(init.Begin), init.Begin
		}
	}
	if r.End.Before(r.Start) {
		r.End = r.Start // the clock was set back between what two processes saw
	}
	r.Wait = max(r.Start.Sub(asked), 0)
	r.Logs = logs(result, r.Limits.LogsMB<<20)
}

// response returns the activation's answer, and whether the activation took too long. A failed call
// to the node is the action's fault where the node says that it cannot be started anywhere, or
// where its sandbox ended or ran out of time while it ran; else it is ours, as an end is for which
// the node blames the NIC (Unavailable).
func response(
	answer *activation.Response, err error, limits activation.Limits,
) (_ activation.Response, timedOut bool) {
	if err == nil {
		return *answer, false
	}
	var start *pool.StartError
	var run *runtime.RunError
	switch {
	case errors.As(err, &start) && status.Code(start.Err) == codes.InvalidArgument:
		return activation.Failed(activation.DeveloperError,
			"The action cannot be started: "+status.Convert(start.Err).Message()), false
	case errors.As(err, &run):
		switch failed := status.Convert(run.Err); failed.Code() {
		case codes.DeadlineExceeded:
			return activation.TimedOut(limits.TimeoutMs), true
		case codes.Unavailable, codes.Canceled:
		default:
			return activation.Failed(activation.DeveloperError,
				"The action did not produce a valid response and exited unexpectedly: "+
					failed.Message()), false
		}
	}
	return activation.Failed(activation.InternalError, err.Error()), false
}

func initSpan(spans []timeline.Span) *timeline.Span {
	for i, s := range spans {
		if s.Stage == timeline.AppInit {
			return &spans[i]
		}
	}
	return nil
}

// logs are the lines of init and run in OpenWhisk's form, cut off at the limit in bytes.
func logs(result runtime.Result, limit int) (logs []string) {
	left := limit
	if left == 0 {
		return nil
	}
	for _, lines := range [...][]*api.LogLine{result.Start.GetLogs(), result.Run.GetLogs()} {
		for _, line := range lines {
			if left -= len(line.Text); left < 0 {
				return append(logs, logLine(time.Now(), "stderr", fmt.Sprintf(
					"Logs were truncated because the total bytes size exceeds the limit of %d bytes.",
					limit)))
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
