package bus

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/couch"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/message"
	"github.com/fastiov/fastiov/invoker/openwhisk/outcome"
	"github.com/fastiov/fastiov/invoker/openwhisk/runtime"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
)

// OnPool runs activations in the sandboxes of a pool.
type OnPool struct {
	Pool    *pool.Pool                       // the bus's own: it ends with it
	Image   func(couch.Exec) (string, error) // the node's image for it
	APIHost string                           // actions get it as __OW_API_HOST
}

// Run places the activation, runs it and tells how it went.
func (p *OnPool) Run(ctx context.Context, r Request) *activation.Record {
	v := visit{Request: r, received: time.Now()}
	record := v.record()
	if len(r.Asked.LockedArgs) > 0 {
		return v.ended(record, activation.Failed(activation.InternalError,
			"Some parameters are encrypted, and this invoker has no key for them."))
	}
	var err error
	if v.image, err = p.Image(r.Action.Exec); err != nil {
		return v.ended(record, activation.Failed(activation.DeveloperError, err.Error()))
	}
	if v.arguments, v.init, err = partition(r.Asked.Content, r.Asked.InitArgs); err != nil {
		return v.ended(record, activation.Failed(activation.InternalError, err.Error()))
	}
	defer context.AfterFunc(ctx, p.Pool.Close)()
	v.over = make(chan struct{})
	runtime.Submit(p.Pool, pool.Demand{
		Namespace: r.Asked.User.Namespace.Name,
		Group:     r.Action.ID + "@" + r.Action.Revision,
		Image:     v.image,
		Stem:      v.handler() == "",
		MemoryMiB: r.Action.Limits.MemoryMB,
		// A controller may allow several calls at once; the node's runtimes serve one.
		Concurrency: 1,
		Start:       func() (*api.StartRequest, error) { return v.start(p.APIHost, v.call()), nil },
		Again:       v.again(p.APIHost),
	}, &v)
	<-v.over
	outcome.Write(record, v.Asked.Transaction.Start, v.received, v.result, v.err)
	return record
}

// A visit is one activation's way through a sandbox.
type visit struct {
	Request
	received  time.Time
	image     string
	arguments json.RawMessage   // an object or an array
	init      map[string]string // environment
	over      chan struct{}     // closed when there is a result
	result    runtime.Result
	err       error
}

// partition lays the arguments that are meant for /init apart from the others.
func partition(content json.RawMessage, forInit []string) (arguments json.RawMessage,
	init map[string]string, err error) {
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

// place returns what the action is told about itself.
func (v *visit) place() runtime.Place {
	return runtime.Place{
		Namespace: v.Asked.User.Namespace.Name, Action: "/" + v.Asked.Action.String(),
		Version: v.Action.Version,
	}
}

// call returns place and what the action is told about its call.
func (v *visit) call() runtime.Call {
	c := runtime.Call{
		Place: v.place(), Activation: v.Asked.ID, Transaction: v.Asked.Transaction.ID,
		Deadline: time.Now().Add(v.timeout()),
	}
	if v.Action.Truthy("provide-api-key", true) {
		c.Key = v.Asked.User.AuthKey.APIKey
	}
	return c
}

func (v *visit) timeout() time.Duration {
	return time.Duration(v.Action.Limits.TimeoutMs) * time.Millisecond
}

// again asks for a sandbox before the next call. Of this call it keeps only which key may call
// which action.
func (v *visit) again(apiHost string) func() (*api.StartRequest, error) {
	asked := message.Activation{Action: v.Asked.Action, User: v.Asked.User}
	next := visit{Request: Request{Asked: &asked, Action: v.Action}, image: v.image, init: v.init}
	return func() (*api.StartRequest, error) {
		next.received = time.Now()
		return next.start(apiHost, runtime.Call{Place: next.place()}), nil
	}
}

func (v *visit) start(apiHost string, c runtime.Call) *api.StartRequest {
	exec := v.Action.Exec
	program := runtime.Program[string]{
		Name: v.Action.Name, Main: exec.Main, Binary: exec.Binary, Code: exec.Code,
	}
	owner, _, _ := strings.Cut(v.Action.Namespace, "/") // of its package, if it is in one
	return &api.StartRequest{
		Namespace: owner, Image: v.image, Handler: v.handler(),
		Init: runtime.Init(program, c, v.init),
		Env:  map[string]string{"__OW_API_HOST": apiHost},
		Call: &api.Call{
			Action: v.Asked.Action.String(), Namespace: c.Namespace,
			WaitedNs: uint64(max(time.Since(v.received), 0)),
		},
	}
}

func (v *visit) handler() string { return runtime.Handler(v.Action.Annotation(runtime.HandlerKey)) }

// Run returns the request to the sandbox.
func (v *visit) Run() (*api.RunRequest, error) {
	return &api.RunRequest{
		Body: runtime.Body(v.call(), v.arguments), TimeoutMs: uint32(v.Action.Limits.TimeoutMs),
	}, nil
}

// Outdated returns false: an action's next revision is another group.
func (*visit) Outdated() bool { return false }

// Ended takes in how it ended.
func (v *visit) Ended(result runtime.Result, err error) {
	v.result, v.err = result, err
	close(v.over)
}

// record returns the parts of the record that are known before anything ran.
func (v *visit) record() *activation.Record {
	return &activation.Record{
		ID: v.Asked.ID, Namespace: v.Asked.User.Namespace.Name, Name: v.Action.Name,
		Version: v.Action.Version, Subject: v.Asked.User.Subject,
		Kind: v.Action.Exec.Kind, Path: v.Action.Namespace + "/" + v.Action.Name,
		Limits: v.Action.Limits,
	}
}

// ended is the record of an activation that reached no sandbox.
func (v *visit) ended(r *activation.Record, response activation.Response) *activation.Record {
	r.Start, r.End, r.Response = v.received, v.received, response
	r.Wait = max(r.Start.Sub(v.Asked.Transaction.Start), 0)
	return r
}
