package openwhisk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/invoker/activation"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// An invocation is on its way from the request to its record.
type invocation struct {
	api         *API
	action      *action
	arguments   []byte // a JSON object
	id          string
	transaction string
	subject     string
	accepted    time.Time
}

// run has the pool run the action, and records how that went.
func (v *invocation) run() outcome {
	result, err := v.api.pool.Do(context.Background(), pool.Job{
		Group:     v.action.group(),
		MemoryMiB: v.action.Limits.MemoryMB,
		Start:     v.startRequest,
		Run:       v.runRequest,
		Keep: func(reply *api.RunReply) bool {
			state := activation.Classify(int(reply.Status), reply.Body).Status
			return (state == activation.Success || state == activation.ApplicationError) && v.api.actions.current(v.action)
		},
	})
	record := v.record(result, err, time.Now())
	v.api.activations.Add(record)
	v.api.metrics.observe(record, isRefused(err))
	if isRefused(err) {
		return outcome{record, fail(http.StatusServiceUnavailable, "%v", err)}
	}
	return outcome{record: record}
}

// environment is what the action finds about itself; /init gives it as environment, /run as fields.
func (v *invocation) environment() map[string]string {
	return map[string]string{
		"namespace":      v.subject,
		"action_name":    "/" + v.action.path(),
		"action_version": v.action.Version,
		"activation_id":  v.id,
		"transaction_id": v.transaction,
		"deadline":       strconv.FormatInt(time.Now().Add(v.timeout()).UnixMilli(), 10),
	}
}

func (v *invocation) timeout() time.Duration {
	return time.Duration(v.action.Limits.TimeoutMs) * time.Millisecond
}

func (v *invocation) startRequest() *api.StartRequest {
	environment := v.environment()
	init := map[string]any{
		"name":   v.action.Name,
		"main":   v.action.Exec.Main,
		"code":   v.action.Exec.code(),
		"binary": *v.action.Exec.Binary,
		"env": map[string]string{
			"__OW_NAMESPACE": environment["namespace"], "__OW_ACTION_NAME": environment["action_name"],
			"__OW_ACTION_VERSION": environment["action_version"], "__OW_ACTIVATION_ID": environment["activation_id"],
			"__OW_TRANSACTION_ID": environment["transaction_id"], "__OW_DEADLINE": environment["deadline"],
		},
	}
	if v.action.Exec.Main == "" {
		init["main"] = "main"
	}
	return &api.StartRequest{
		Image: v.action.image(),
		Init:  mustMarshal(map[string]any{"value": init}),
		Env:   map[string]string{"__OW_API_HOST": v.api.cfg.APIHost},
	}
}

func (v *invocation) runRequest() *api.RunRequest {
	body := map[string]any{"value": json.RawMessage(v.arguments)}
	for key, value := range v.environment() {
		body[key] = value
	}
	for _, pair := range v.action.Annotations {
		if pair.Key == "provide-api-key" && string(pair.Value) == "true" {
			body["api_key"] = v.api.cfg.Key.String()
		}
	}
	return &api.RunRequest{Body: mustMarshal(body), TimeoutMs: uint32(v.action.Limits.TimeoutMs)}
}

func mustMarshal(body any) []byte {
	content, err := json.Marshal(body)
	if err != nil {
		panic(err) // strings, and JSON that was checked when it came in
	}
	return content
}

// record tells how the invocation ended, at now unless the sandbox says when.
func (v *invocation) record(result pool.Result, err error, now time.Time) *activation.Record {
	r := &activation.Record{
		ID: v.id, Namespace: v.subject, Name: v.action.Name, Version: v.action.Version, Subject: v.subject,
		Kind: v.action.Exec.Kind, Path: v.action.path(), Limits: v.action.Limits,
	}
	r.Response, r.TimedOut = v.response(result, err)
	r.Start, r.End = now, now
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
	case result.Run == nil:
		return activation.ClassifyInit(int(result.Start.InitStatus), result.Start.InitReply), false
	default:
		return activation.Classify(int(result.Run.Status), result.Run.Body), false
	}
}

// failedCall tells whose fault a failed call to the node was: the action's where the node says that it cannot be started anywhere,
// or where its sandbox ended or ran out of time while it ran; else ours.
func (v *invocation) failedCall(call *pool.CallError) (activation.Response, bool) {
	code := status.Code(call.Err)
	message := status.Convert(call.Err).Message()
	switch {
	case call.Phase == pool.Running && code == codes.DeadlineExceeded:
		return activation.TimedOut(v.action.Limits.TimeoutMs), true
	case call.Phase == pool.Running && code != codes.Unavailable && code != codes.Canceled:
		return activation.Failed(activation.DeveloperError, "The action did not produce a valid response and exited unexpectedly: "+message), false
	case call.Phase == pool.Starting && code == codes.InvalidArgument:
		return activation.Failed(activation.DeveloperError, "The action cannot be started: "+message), false
	default:
		return activation.Failed(activation.InternalError, call.Error()), false
	}
}

// isRefused tells whether nothing was wrong with the action or its start, but there was no place for it.
func isRefused(err error) bool {
	var refused *pool.Refused
	var call *pool.CallError
	if errors.As(err, &refused) {
		return true
	}
	if !errors.As(err, &call) || call.Phase != pool.Starting {
		return false
	}
	code := status.Code(call.Err)
	return code == codes.ResourceExhausted || code == codes.Unavailable
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
func (v *invocation) logs(result pool.Result) []string {
	lines := append(result.Start.GetLogs(), result.Run.GetLogs()...)
	logs, left := []string{}, v.action.Limits.LogsMB<<20
	if left == 0 {
		return logs
	}
	for _, line := range lines {
		if left -= len(line.Text); left < 0 {
			return append(logs, logLine(time.Now(), "stderr",
				fmt.Sprintf("Logs were truncated because the total bytes size exceeds the limit of %d bytes.", v.action.Limits.LogsMB<<20)))
		}
		logs = append(logs, logLine(time.Unix(0, line.TimeNs), line.Stream, line.Text))
	}
	return logs
}

func logLine(at time.Time, stream, text string) string {
	return fmt.Sprintf("%-30s %s: %s", at.UTC().Format(time.RFC3339Nano), stream, text)
}
