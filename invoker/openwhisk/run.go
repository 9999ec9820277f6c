package openwhisk

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/activation"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
)

// job is the invocation as the pool sees it.
func (v *invocation) job() pool.Job {
	return pool.Job{
		Namespace:   v.user.Namespace,
		Group:       v.on.group,
		Image:       v.on.Image(v.api.cfg.Runtimes),
		MemoryMiB:   v.on.Limits.MemoryMB,
		Concurrency: v.on.Limits.Concurrency,
		Start:       v.startRequest,
		Run: func() (*api.RunRequest, error) {
			if err := v.leave(context.Background()); err != nil {
				return nil, fmt.Errorf("that it was sent could not be noted: %w", err)
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

// startRequest asks for a sandbox of the action's image, initialised with its code.
func (v *invocation) startRequest() (*api.StartRequest, error) {
	code, err := v.api.code(context.Background(), v.on.action)
	if err != nil {
		return nil, fmt.Errorf("the action's code: %w", err)
	}
	environment := map[string]string{}
	for key, value := range v.on.fixed.Init {
		environment[key] = value
	}
	for key, value := range map[string]string{
		"__OW_NAMESPACE": v.user.Namespace, "__OW_ACTION_NAME": v.on.full, "__OW_ACTION_VERSION": v.on.Version,
		"__OW_ACTIVATION_ID": v.id, "__OW_TRANSACTION_ID": v.transaction, "__OW_DEADLINE": v.deadline(),
	} {
		environment[key] = value
	}
	if v.wantsKey() {
		environment["__OW_API_KEY"] = v.key.String()
	}
	main := v.on.Exec.Main
	if main == "" {
		main = "main"
	}
	return &api.StartRequest{
		Image: v.on.Image(v.api.cfg.Runtimes),
		Init:  initBody(v.on.Name, main, *v.on.Exec.Binary, code, environment),
		Env:   map[string]string{"__OW_API_HOST": v.api.cfg.APIHost},
		Call:  &api.Call{Action: v.on.full[1:], Namespace: v.user.Namespace, WaitedNs: uint64(max(time.Since(v.accepted), 0))},
	}, nil
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
