package openwhisk

import (
	"net/http"
	"net/url"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/openwhisk/web"
)

// invoke accepts an invocation. A blocking caller gets its outcome, or after a while its id, like a
// caller that does not block.
func (a *API) invoke(w http.ResponseWriter, r *http.Request, rq *request) (err error) {
	if err := rq.user.Call(rq.accepted, rq.user.Limits); err != nil {
		return err
	}
	begun := false
	defer func() {
		if !begun {
			rq.user.Done()
		}
	}()
	how, err := a.readManner(r.URL)
	if err != nil {
		return err
	}
	path, err := rq.named(r)
	if err != nil {
		return err
	}
	on, err := a.invocable(rq.user, path)
	if err != nil {
		return err
	}
	body, err := rq.readBody(w, r, entity.MaxArguments)
	if err != nil {
		return err
	}
	arguments, err := on.fixed.Under(body)
	if err != nil {
		return err
	}
	c, err := rq.callWith(on, arguments)
	if err != nil {
		return err
	}
	if how.wait > 0 {
		// The request has been read, so its deadline is over. It would now cut off the watch for
		// the caller going away.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
	begun = true
	started, err := a.start(r.Context(), c, how.wait)
	w.Header()[web.ActivationID] = []string{started.id}
	switch {
	case err != nil:
		return err
	case started.end == nil:
		answer(w, http.StatusAccepted, map[string]string{"activationId": started.id})
		return nil
	}
	return rq.answerCompletion(w, started.end, how.bare)
}

// callWith returns the call that a request asks for. The memory that the request holds becomes the
// call's.
func (rq *request) callWith(on *resolved, arguments []byte) (c call, err error) {
	if err := rq.bytes.upTo(int64(len(arguments))); err != nil {
		return c, err
	}
	c = rq.call(on, arguments)
	c.bytes = rq.bytes.passOn()
	return c, nil
}

func (rq *request) call(on *resolved, arguments []byte) call {
	return call{user: rq.user, key: rq.key, on: on, arguments: arguments,
		transaction: rq.transaction, accepted: rq.accepted}
}

// A manner says how the caller wants its answer.
type manner struct {
	wait time.Duration // 0: not blocking
	bare bool          // the result alone
}

func (a *API) readManner(u *url.URL) (how manner, err error) {
	switch u.RawQuery { // the queries of usual clients, read without parsing
	case "", "blocking=false&result=false":
		return manner{}, nil
	case "blocking=true", "blocking=true&result=false":
		return manner{wait: a.cfg.Blocking}, nil
	case "blocking=true&result=true":
		return manner{wait: a.cfg.Blocking, bare: true}, nil
	}
	query := u.Query()
	blocking, err := flag(query, "blocking", false)
	if err != nil {
		return how, err
	}
	if how.bare, err = flag(query, "result", false); err != nil {
		return how, err
	}
	most := a.cfg.Blocking.Milliseconds()
	wait, err := number(query, "timeout", most, 1, most)
	if blocking {
		how.wait = time.Duration(wait) * time.Millisecond
	}
	return how, err
}

func (rq *request) answerCompletion(w http.ResponseWriter, end *completion, bare bool) error {
	if end.refused != nil {
		return end.refused
	}
	status := http.StatusOK
	switch end.record.Response.Status {
	case activation.ApplicationError, activation.DeveloperError:
		status = http.StatusBadGateway
	case activation.InternalError:
		status = http.StatusInternalServerError
	}
	if result := end.record.Response.Result; bare || len(result) > 0 && result[0] == '[' {
		rq.answerJSON(w, status, result)
		return nil
	}
	buffer := buffers.Get().(*[]byte)
	*buffer = end.record.AppendJSON((*buffer)[:0])
	rq.answerJSON(w, status, *buffer)
	if cap(*buffer) <= 64<<10 { // a large one would be kept for small answers
		buffers.Put(buffer)
	}
	return nil
}
