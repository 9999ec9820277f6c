package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/invoker/activation"
	"github.com/fastiov/fastiov/invoker/bus/couch"
	"github.com/fastiov/fastiov/invoker/bus/message"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// OnPool runs activations in the sandboxes of a pool.
type OnPool struct {
	Pool    *pool.Pool
	Image   func(couch.Exec) (string, error) // the node's image for it
	APIHost string                           // what actions get as __OW_API_HOST
}

// Run places the activation, runs it and tells how it went.
func (p *OnPool) Run(ctx context.Context, r Request) *activation.Record {
	v := visit{Request: r, received: time.Now()}
	record := v.record()
	if len(r.Asked.LockedArgs) > 0 {
		return v.ended(record, activation.Failed(activation.InternalError, "Some parameters are encrypted, and this invoker has no key for them."))
	}
	var err error
	if v.image, err = p.Image(r.Action.Exec); err != nil {
		return v.ended(record, activation.Failed(activation.DeveloperError, err.Error()))
	}
	if v.arguments, v.init, err = partition(r.Asked.Content, r.Asked.InitArgs); err != nil {
		return v.ended(record, activation.Failed(activation.InternalError, err.Error()))
	}
	result, err := p.Pool.Do(ctx, pool.Job{
		Namespace: r.Asked.User.Namespace.Name,
		Group:     r.Action.ID + "@" + r.Action.Revision,
		Image:     v.image,
		MemoryMiB: r.Action.Limits.MemoryMB,
		Start:     func() (*api.StartRequest, error) { return v.start(p.APIHost), nil },
		Run:       func() (*api.RunRequest, error) { return v.run(), nil },
		Keep: func(reply *api.RunReply) bool {
			s := activation.Classify(int(reply.Status), reply.Body).Status
			return s == activation.Success || s == activation.ApplicationError
		},
	})
	v.tell(record, result, err)
	return record
}

// A visit is one activation's way through a sandbox.
type visit struct {
	Request
	received  time.Time
	image     string
	arguments json.RawMessage   // an object or an array
	init      map[string]string // environment
}

// partition lays the arguments that are meant for /init apart from the others.
func partition(content json.RawMessage, forInit []string) (arguments json.RawMessage, init map[string]string, err error) {
	init = map[string]string{}
	switch {
	case len(content) == 0 || string(content) == "null":
		return json.RawMessage("{}"), init, nil
	case content[0] == '[':
		return content, init, nil
	case content[0] != '{':
		return nil, nil, errors.New("the arguments are neither an object nor an array")
	case len(forInit) == 0:
		return content, init, nil
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(content, &all); err != nil {
		return nil, nil, err
	}
	for _, key := range forInit {
		value, found := all[key]
		if !found {
			continue
		}
		delete(all, key)
		var text string
		if json.Unmarshal(value, &text) != nil { // null leaves it empty
			text = string(value)
		}
		init[key] = text
	}
	return message.Encode(all), init, nil
}

// environment is what the action finds about itself: /init gives it as environment, /run as fields.
func (v *visit) environment() map[string]any {
	env := map[string]any{
		"namespace":      v.Asked.User.Namespace.Name,
		"action_name":    "/" + v.Asked.Action.String(),
		"action_version": v.Action.Version,
		"activation_id":  v.Asked.ID,
		"transaction_id": v.Asked.Transaction.ID,
		"deadline":       strconv.FormatInt(time.Now().Add(v.timeout()).UnixMilli(), 10),
	}
	if key := v.Asked.User.AuthKey.APIKey; key != "" && v.Action.Truthy("provide-api-key", true) {
		env["api_key"] = key
	}
	return env
}

func (v *visit) timeout() time.Duration {
	return time.Duration(v.Action.Limits.TimeoutMs) * time.Millisecond
}

func (v *visit) start(apiHost string) *api.StartRequest {
	env := v.init
	for key, value := range v.environment() {
		env["__OW_"+strings.ToUpper(key)] = value.(string)
	}
	init := map[string]any{"name": v.Action.Name, "main": "main", "code": v.Action.Exec.Code, "binary": v.Action.Exec.Binary, "env": env}
	if v.Action.Exec.Main != "" {
		init["main"] = v.Action.Exec.Main
	}
	return &api.StartRequest{Image: v.image, Init: message.Encode(map[string]any{"value": init}), Env: map[string]string{"__OW_API_HOST": apiHost}}
}

func (v *visit) run() *api.RunRequest {
	body := v.environment()
	body["value"] = v.arguments
	return &api.RunRequest{Body: message.Encode(body), TimeoutMs: uint32(v.Action.Limits.TimeoutMs)}
}

// record is what is known before anything ran.
func (v *visit) record() *activation.Record {
	return &activation.Record{
		ID: v.Asked.ID, Namespace: v.Asked.User.Namespace.Name, Name: v.Action.Name, Version: v.Action.Version, Subject: v.Asked.User.Subject,
		Kind: v.Action.Exec.Kind, Path: v.Action.Namespace + "/" + v.Action.Name, Limits: v.Action.Limits,
	}
}

// ended is the record of an activation that reached no sandbox.
func (v *visit) ended(r *activation.Record, response activation.Response) *activation.Record {
	r.Start, r.End, r.Response = v.received, v.received, response
	r.Wait = max(r.Start.Sub(v.Asked.Transaction.Start), 0)
	return r
}

// tell completes the record by what the pool reports.
func (v *visit) tell(r *activation.Record, result pool.Result, err error) {
	now := time.Now()
	r.Start, r.End = now, now
	r.Response, r.TimedOut = v.response(result, err)
	if run := result.Run; run != nil {
		r.Start, r.End = time.Unix(0, run.BeginNs), time.Unix(0, run.EndNs)
	} else if !result.Placed.IsZero() && !result.Cold {
		r.Start = result.Placed
	}
	if result.Start != nil {
		r.Cold = v.coldStart(result, r.End)
		for _, span := range r.Cold.Spans {
			if span.Stage == timeline.AppInit {
				r.Init, r.Start = span.End.Sub(span.Begin), span.Begin
			}
		}
	}
	r.Wait = max(r.Start.Sub(v.Asked.Transaction.Start), 0)
	r.Logs = logs(append(result.Start.GetLogs(), result.Run.GetLogs()...), v.Action.Limits.LogsMB<<20)
}

// response is what the action answered, or whose fault it is that it did not.
func (v *visit) response(result pool.Result, err error) (_ activation.Response, timedOut bool) {
	var call *pool.CallError
	switch {
	case errors.As(err, &call):
		code, text := status.Code(call.Err), status.Convert(call.Err).Message()
		switch {
		case call.Phase == pool.Running && code == codes.DeadlineExceeded:
			return activation.TimedOut(v.Action.Limits.TimeoutMs), true
		case call.Phase == pool.Running && code != codes.Unavailable && code != codes.Canceled:
			return activation.Failed(activation.DeveloperError, "The action did not produce a valid response and exited unexpectedly: "+text), false
		case call.Phase == pool.Starting && code == codes.InvalidArgument:
			return activation.Failed(activation.DeveloperError, "The action cannot be started: "+text), false
		}
		return activation.Failed(activation.InternalError, call.Error()), false
	case err != nil:
		return activation.Failed(activation.InternalError, err.Error()), false
	case result.Run == nil:
		return activation.ClassifyInit(int(result.Start.InitStatus), result.Start.InitReply), false
	default:
		return activation.Classify(int(result.Run.Status), result.Run.Body), false
	}
}

// coldStart joins the invoker's own stages with the node's.
func (v *visit) coldStart(result pool.Result, end time.Time) *activation.ColdStart {
	var tl timeline.Timeline
	tl.Add(timeline.Span{Stage: timeline.Queue, Begin: v.received, End: result.Placed})
	for _, s := range result.Start.Spans {
		tl.Add(timeline.Span{Stage: timeline.Stage(s.Stage), Begin: time.Unix(0, s.BeginNs), End: time.Unix(0, s.EndNs), Error: time.Duration(s.ErrorNs)})
	}
	if run := result.Run; run != nil {
		tl.Add(timeline.Span{Stage: timeline.FirstByte, Begin: time.Unix(0, run.BeginNs), End: time.Unix(0, run.EndNs)})
	}
	cold := &activation.ColdStart{
		Sandbox: result.Sandbox, Driver: result.Start.Driver, VF: result.Start.Vf, MAC: result.Start.Mac, Address: result.Start.Address,
		Answered: result.Run != nil, Begin: v.received, End: end, Spans: tl.Spans(),
	}
	cold.Attribute()
	return cold
}

// logs are the lines in OpenWhisk's form, cut off at the action's limit in bytes.
func logs(lines []*api.LogLine, limit int) []string {
	kept, left := []string{}, limit
	if limit == 0 {
		return kept
	}
	for _, line := range lines {
		if left -= len(line.Text); left < 0 {
			return append(kept, logLine(time.Now(), "stderr",
				fmt.Sprintf("Logs were truncated because the total bytes size exceeds the limit of %d bytes.", limit)))
		}
		kept = append(kept, logLine(time.Unix(0, line.TimeNs), line.Stream, line.Text))
	}
	return kept
}

func logLine(at time.Time, stream, text string) string {
	return fmt.Sprintf("%-30s %s: %s", at.UTC().Format(time.RFC3339Nano), stream, text)
}
