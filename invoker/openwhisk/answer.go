package openwhisk

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/openwhisk/web"
	"github.com/fastiov/fastiov/invoker/store"
)

func fail(status int, format string, args ...any) error {
	return entity.Refuse(status, format, args...)
}

func badRequest(format string, args ...any) error {
	return fail(http.StatusBadRequest, format, args...)
}
func notFound(format string, args ...any) error {
	return fail(http.StatusNotFound, format, args...)
}

// answer is for small answers; request's counts what it answers.
func answer(w http.ResponseWriter, status int, body any) {
	answerJSON(w, status, marshalled(body))
}

func (rq *request) answer(w http.ResponseWriter, status int, body any) {
	rq.answerJSON(w, status, marshalled(body))
}

// answerJSON holds the answer until it is written, however slow its reader is. It is there and
// cannot be refused; large ones are asked for before they are made.
func (rq *request) answerJSON(w http.ResponseWriter, status int, content []byte) {
	rq.bytes.force(max(rq.bytes.n, int64(len(content))))
	answerJSON(w, status, content)
}

func marshalled(body any) []byte {
	content, err := json.Marshal(body)
	if err != nil {
		panic(err) // every body is made of types that marshal
	}
	return content
}

// Header values that never differ, made once; their names are in the form that needs no
// canonicalising.
var (
	jsonType = []string{"application/json"}
	noSniff  = []string{"nosniff"}
)

func answerJSON(w http.ResponseWriter, status int, content []byte) {
	h := w.Header()
	h["Content-Type"] = jsonType
	h["X-Content-Type-Options"] = noSniff
	w.WriteHeader(status)
	_, _ = w.Write(content) // the caller has gone: nobody is left to tell
}

// answerError writes OpenWhisk's error form. Clients want both keys; the code names the
// transaction.
func answerError(w http.ResponseWriter, err error) {
	if errors.Is(err, errUnknown) {
		panic(http.ErrAbortHandler) // closes the connection
	}
	status := statusOf(err)
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	answer(w, status, map[string]string{"error": err.Error(),
		"code": w.Header().Get(web.RequestID)})
}

// statusOf is the HTTP status of an error; 0 where there is none.
func statusOf(err error) int {
	var refusal *entity.Refusal
	var tooMany *access.TooMany
	var full *overfull
	switch {
	case err == nil:
		return 0
	case errors.As(err, &full):
		return http.StatusRequestEntityTooLarge
	case errors.As(err, &refusal):
		return refusal.Status
	case errors.As(err, &tooMany) && tooMany.Limit == access.BytesOfAll:
		return http.StatusServiceUnavailable
	case tooMany != nil:
		return http.StatusTooManyRequests
	}
	return http.StatusInternalServerError
}

// begin gives the request its transaction id, which the answer has too: the caller's own, or a
// fresh one.
func begin(w http.ResponseWriter, r *http.Request) (transaction string) {
	transaction = r.Header.Get(web.RequestID)
	if !plain(transaction) {
		transaction = store.NewID()
	}
	w.Header()[web.RequestID] = []string{transaction}
	return transaction
}

func plain(id string) bool {
	for _, c := range []byte(id) {
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') &&
			(c < 'a' || c > 'z') {
			return false
		}
	}
	return len(id) > 0 && len(id) <= 64
}

// number reads a query parameter within [least, most].
func number(query url.Values, name string, otherwise, least, most int64) (int64, error) {
	text := query.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, badRequest("the query parameter %s is %q; it must be a number from %d to %d",
			name, text, least, most)
	}
	return n, nil
}

// flag reads a boolean query parameter.
func flag(query url.Values, name string, otherwise bool) (bool, error) {
	text := query.Get(name)
	if text == "" {
		return otherwise, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, badRequest("the query parameter %s is %q; it must be true or false",
			name, text)
	}
	return value, nil
}

// A window is the part of a list that a caller asks for.
type window struct {
	skip, limit int
	count       bool // only how many there are
}

func readWindow(query url.Values) (p window, err error) {
	const most = 200
	limit, err := number(query, "limit", 30, 0, most)
	if err != nil {
		return p, err
	}
	skip, err := number(query, "skip", 0, 0, 1<<31)
	if err != nil {
		return p, err
	}
	if limit == 0 {
		limit = most
	}
	p.skip, p.limit = int(skip), int(limit)
	p.count, err = flag(query, "count", false)
	return p, err
}

// answerList cuts a list to the part that limit and skip ask for; with count=true it answers the
// number of items instead.
func answerList[T any](w http.ResponseWriter, r *http.Request, rq *request, collection string,
	all []T, show func(T) any) error {
	p, err := readWindow(r.URL.Query())
	if err != nil {
		return err
	}
	all = all[min(p.skip, len(all)):]
	if p.count {
		answer(w, http.StatusOK, map[string]int{collection: len(all)})
		return nil
	}
	out := list{w: w, bytes: &rq.bytes}
	for _, item := range all[:min(p.limit, len(all))] {
		row, err := json.Marshal(show(item))
		if err == nil {
			err = out.row(func(b []byte) []byte { return append(b, row...) })
		}
		if err != nil {
			return out.end(err)
		}
	}
	return out.end(nil)
}

// buffers holds buffers for answers that are written many times a second.
var buffers = sync.Pool{New: func() any { return new([]byte) }}
