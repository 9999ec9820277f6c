package openwhisk

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
)

// job is the invocation as the pool sees it.
func (v *invocation) job() pool.Job {
	var again func() (*api.StartRequest, error)
	if v.api.foresees {
		again = v.api.again(v.user.Namespace, v.on)
	}
	return pool.Job{
		Again:       again,
		Namespace:   v.user.Namespace,
		Group:       v.on.group,
		Image:       v.on.Image(v.api.cfg.Runtimes),
		MemoryMiB:   v.on.Limits.MemoryMB,
		Wait:        v.wait,
		Concurrency: 1, // whatever the limits of an action say that is older than the bound of 1
		Start:       v.startRequest,
		Run: func() (*api.RunRequest, error) {
			if err := v.leave(context.Background()); err != nil {
				return nil, err
			}
			return v.runRequest(), nil
		},
		Keep: func(reply *api.RunReply) bool {
			response := activation.Classify(int(reply.Status), reply.Body)
			v.answer = &response
			fine := response.Status == activation.Success || response.Status == activation.ApplicationError
			return fine && v.api.isCurrent(v.on.action)
		},
	}
}

// isCurrent reports whether the action is still what its name stands for.
func (a *API) isCurrent(of *action) bool {
	now, _ := a.catalog.actions.get(of.path.Namespace, of.path.Local())
	return now == of
}

func (v *invocation) timeout() time.Duration {
	return time.Duration(v.on.Limits.TimeoutMs) * time.Millisecond
}

func (v *invocation) deadline() string {
	return strconv.FormatInt(time.Now().Add(v.timeout()).UnixMilli(), 10)
}

// wantsKey tells whether the action is given its caller's key, where there is one. An action that says nothing is not.
func (v *invocation) wantsKey() bool {
	return v.on.Annotations.True("provide-api-key") && v.key != (access.Key{})
}

// startRequest asks for a sandbox for the call.
func (v *invocation) startRequest() (*api.StartRequest, error) {
	environment := map[string]string{
		"__OW_ACTIVATION_ID": v.id, "__OW_TRANSACTION_ID": v.transaction, "__OW_DEADLINE": v.deadline(),
	}
	if v.wantsKey() {
		environment["__OW_API_KEY"] = v.key.String()
	}
	request, err := v.api.startRequest(v.user.Namespace, v.on, environment)
	if err == nil {
		request.Call.WaitedNs = uint64(age(v.accepted))
	}
	return request, err
}

// again asks for a sandbox before anybody calls.
func (a *API) again(namespace string, on *resolved) func() (*api.StartRequest, error) {
	return func() (*api.StartRequest, error) { return a.startRequest(namespace, on, map[string]string{}) }
}

// startRequest asks for a sandbox of the action's image, initialised with its code. The environment is
// what the call adds to that of the action.
func (a *API) startRequest(namespace string, on *resolved, environment map[string]string) (*api.StartRequest, error) {
	code, err := a.code(context.Background(), on.action)
	if err != nil {
		return nil, fmt.Errorf("the action's code: %w", err)
	}
	for key, value := range on.fixed.Init {
		if _, ours := environment[key]; !ours {
			environment[key] = value
		}
	}
	environment["__OW_NAMESPACE"] = namespace
	environment["__OW_ACTION_NAME"], environment["__OW_ACTION_VERSION"] = on.full, on.Version
	main := on.Exec.Main
	if main == "" {
		main = "main"
	}
	return &api.StartRequest{
		Image: on.Image(a.cfg.Runtimes), Namespace: owner(on.full),
		Init: initBody(on.Name, main, *on.Exec.Binary, code, environment),
		Env:  map[string]string{"__OW_API_HOST": a.cfg.APIHost},
		Call: &api.Call{Action: on.full[1:], Namespace: namespace},
	}, nil
}

// owner is the namespace of an action by its full name, /namespace/….
func owner(full string) string {
	namespace, _, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	return namespace
}

func initBody(name, main string, binary bool, code []byte, environment map[string]string) []byte {
	b := make([]byte, 0, len(code)+len(code)/8+1024)
	b = quoted(append(b, `{"value":{"name":`...), name)
	b = quoted(append(b, `,"main":`...), main)
	b = strconv.AppendBool(append(b, `,"binary":`...), binary)
	b, _ = jsontext.AppendQuote(append(b, `,"code":`...), code)
	b = append(b, `,"env":{`...)
	first := true
	for key, value := range environment {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = quoted(append(quoted(b, key), ':'), value)
	}
	return append(b, `}}}`...)
}

// runRequest splices the arguments into the fields around them, unread.
func (v *invocation) runRequest() *api.RunRequest {
	b := make([]byte, 0, len(v.arguments)+384)
	b = append(append(b, `{"value":`...), v.arguments...)
	for _, field := range [...]struct{ name, value string }{
		{`,"namespace":`, v.user.Namespace}, {`,"action_name":`, v.on.full}, {`,"action_version":`, v.on.Version},
		{`,"activation_id":`, v.id}, {`,"transaction_id":`, v.transaction}, {`,"deadline":`, v.deadline()},
	} {
		b = quoted(append(b, field.name...), field.value)
	}
	if v.wantsKey() {
		b = quoted(append(b, `,"api_key":`...), v.key.String())
	}
	return &api.RunRequest{Body: append(b, '}'), TimeoutMs: uint32(v.on.Limits.TimeoutMs)}
}

func quoted(b []byte, text string) []byte {
	b, _ = jsontext.AppendQuote(b, text) // its error says that what is no UTF-8 was replaced
	return b
}
