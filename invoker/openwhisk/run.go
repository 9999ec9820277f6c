package openwhisk

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/runtime"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
)

// demand says which sandbox the invocation needs.
func (v *invocation) demand() pool.Demand {
	var again func() (*api.StartRequest, error)
	if v.api.foresees {
		again = v.api.again(v.user.Namespace, v.on)
	}
	return pool.Demand{
		Again:       again,
		Namespace:   v.user.Namespace,
		Group:       v.on.group,
		Image:       v.on.Image(v.api.cfg.Runtimes),
		Stem:        v.on.handler() == "",
		MemoryMiB:   v.on.Limits.MemoryMB,
		Wait:        v.wait,
		Concurrency: 1, // whatever the limits of an action say that is older than the bound of 1
		Start:       v.startRequest,
	}
}

// Run notes that the call is sent, and returns what it sends.
func (v *invocation) Run() (*api.RunRequest, error) {
	if err := v.markSent(context.Background()); err != nil {
		return nil, err
	}
	body := runtime.Body(v.about(), v.arguments)
	return &api.RunRequest{Body: body, TimeoutMs: uint32(v.on.Limits.TimeoutMs)}, nil
}

// Outdated reports whether the action was changed meanwhile.
func (v *invocation) Outdated() bool { return !v.api.isCurrent(v.on.action) }

// isCurrent reports whether the action is still what its name stands for.
func (a *API) isCurrent(of *action) bool {
	now, _ := a.catalog.actions.get(of.path.Namespace, of.path.Local())
	return now == of
}

func (v *invocation) timeout() time.Duration {
	return time.Duration(v.on.Limits.TimeoutMs) * time.Millisecond
}

// wantsKey reports whether the action is given its caller's key, if there is one. An action that
// says nothing is not.
func (v *invocation) wantsKey() bool {
	return v.on.Annotations.True("provide-api-key") && v.key != (access.Key{})
}

// place returns what the action is told about itself, whoever calls.
func (r *resolved) place(namespace string) runtime.Place {
	return runtime.Place{Namespace: namespace, Action: r.full, Version: r.Version}
}

// about returns what the action is told about its call.
func (v *invocation) about() runtime.Call {
	c := runtime.Call{
		Place: v.on.place(v.user.Namespace), Activation: v.id, Transaction: v.transaction,
		Deadline: time.Now().Add(v.timeout()),
	}
	if v.wantsKey() {
		c.Key = v.key.String()
	}
	return c
}

// startRequest asks for a sandbox for the call.
func (v *invocation) startRequest() (*api.StartRequest, error) {
	request, err := v.api.startRequest(v.on, v.about())
	if err == nil {
		request.Call.WaitedNs = uint64(age(v.accepted))
	}
	return request, err
}

// again asks for a sandbox before anybody calls.
func (a *API) again(namespace string, on *resolved) func() (*api.StartRequest, error) {
	return func() (*api.StartRequest, error) {
		return a.startRequest(on, runtime.Call{Place: on.place(namespace)})
	}
}

// startRequest asks for a sandbox of the action's image, initialised with its code.
func (a *API) startRequest(on *resolved, c runtime.Call) (*api.StartRequest, error) {
	code, err := a.code(context.Background(), on.action)
	if err != nil {
		return nil, fmt.Errorf("the action's code: %w", err)
	}
	program := runtime.Program[[]byte]{
		Name: on.Name, Main: on.Exec.Main, Binary: *on.Exec.Binary, Code: code,
	}
	return &api.StartRequest{
		Image: on.Image(a.cfg.Runtimes), Namespace: owner(on.full), Handler: on.handler(),
		Init: runtime.Init(program, c, on.fixed.Init),
		Env:  map[string]string{"__OW_API_HOST": a.cfg.APIHost},
		Call: &api.Call{Action: on.full[1:], Namespace: c.Namespace},
	}, nil
}

// handler returns the runtime handler that the action's annotation names, or "".
func (r *resolved) handler() string {
	value, _ := r.Annotations.Get(runtime.HandlerKey)
	return runtime.Handler(value)
}

// owner is the namespace of an action by its full name, /namespace/….
func owner(full string) string {
	namespace, _, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	return namespace
}
