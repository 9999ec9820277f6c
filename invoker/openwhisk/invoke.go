package openwhisk

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/fastiov/fastiov/invoker/activation"
)

// maxPayload bounds an invocation's arguments, and what they are together with the action's parameters.
const maxPayload = 1 << 20

// invoke accepts an invocation. A blocking caller gets its outcome, or after a while its id, like a caller that does not block.
func (a *API) invoke(w http.ResponseWriter, r *http.Request, namespace string) error {
	accepted := time.Now()
	call, err := a.parseCall(w, r, namespace)
	if err != nil {
		return err
	}
	if a.inFlight.Add(1) > int64(a.cfg.InFlight) {
		a.inFlight.Add(-1)
		return fail(http.StatusTooManyRequests, "too many concurrent requests in flight, %d are allowed; try again when some have finished", a.cfg.InFlight)
	}
	v := invocation{
		api: a, action: call.action, arguments: call.arguments, id: activation.NewID(),
		transaction: w.Header().Get("X-Request-ID"), subject: namespace, accepted: accepted,
	}
	done := make(chan outcome, 1)
	a.running.Go(func() {
		defer a.inFlight.Add(-1)
		done <- v.run()
	})
	w.Header().Set("x-openwhisk-activation-id", v.id)
	a.answerCall(w, r, call, v.id, done)
	return nil
}

// A call is what a POST asks for.
type call struct {
	action    *action
	arguments []byte
	wait      time.Duration // 0: not blocking
	bare      bool          // answer with the result alone
}

func (a *API) parseCall(w http.ResponseWriter, r *http.Request, namespace string) (c call, err error) {
	query := r.URL.Query()
	blocking, err := flag(query, "blocking", false)
	if err != nil {
		return c, err
	}
	if c.bare, err = flag(query, "result", false); err != nil {
		return c, err
	}
	most := a.cfg.Blocking.Milliseconds()
	wait, err := number(query, "timeout", most, 1, most)
	if err != nil {
		return c, err
	}
	if blocking {
		c.wait = time.Duration(wait) * time.Millisecond
	}
	if c.action, err = a.actions.get(namespace, r.PathValue("name")); err != nil {
		return c, err
	}
	body, err := readBody(w, r, maxPayload)
	if err != nil {
		return c, err
	}
	c.arguments, err = merge(c.action.Parameters, body)
	return c, err
}

// merge lays the caller's arguments over the action's parameters. Arguments are an object, or nothing.
func merge(parameters []keyValue, body []byte) ([]byte, error) {
	var given map[string]json.RawMessage
	if len(body) > 0 {
		if err := decode(body, &given); err != nil {
			return nil, err
		}
	}
	merged := make(map[string]json.RawMessage, len(parameters)+len(given))
	for _, p := range parameters {
		merged[p.Key] = p.Value
	}
	for key, value := range given {
		merged[key] = value
	}
	arguments, err := json.Marshal(merged)
	if err != nil {
		return nil, badRequest("the request content is malformed: %v", err)
	}
	if len(arguments) > maxPayload+maxParameters {
		return nil, fail(http.StatusRequestEntityTooLarge, "arguments and parameters together have %d bytes; at most %d", len(arguments), maxPayload+maxParameters)
	}
	return arguments, nil
}

// answerCall waits as long as the call says. The activation goes on when it stops waiting.
func (a *API) answerCall(w http.ResponseWriter, r *http.Request, c call, id string, done <-chan outcome) {
	if c.wait > 0 {
		// The time to send the request is over; what would run into it now is the watch for the caller going away.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		ctx, cancel := context.WithTimeout(r.Context(), c.wait)
		defer cancel()
		select {
		case out := <-done:
			answerOutcome(w, out, c.bare)
			return
		case <-ctx.Done():
		}
	}
	answer(w, http.StatusAccepted, map[string]string{"activationId": id})
}

func answerOutcome(w http.ResponseWriter, out outcome, bare bool) {
	if out.refused != nil {
		w.Header().Set("Retry-After", "1")
		answerError(w, out.refused)
		return
	}
	status := http.StatusOK
	switch out.record.Response.Status {
	case activation.ApplicationError, activation.DeveloperError:
		status = http.StatusBadGateway
	case activation.InternalError:
		status = http.StatusInternalServerError
	}
	if result := out.record.Response.Result; bare || len(result) > 0 && result[0] == '[' {
		answer(w, status, result)
		return
	}
	answer(w, status, out.record)
}

// An outcome is how an invocation ended. A refused one has a record too, for those who look for its id.
type outcome struct {
	record  *activation.Record
	refused error
}
