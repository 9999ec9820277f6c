package openwhisk

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/activation"
	"github.com/fastiov/fastiov/invoker/entity"
)

func fail(status int, format string, args ...any) error {
	return entity.Refuse(status, format, args...)
}

func badRequest(format string, args ...any) error {
	return fail(http.StatusBadRequest, format, args...)
}
func notFound(format string, args ...any) error { return fail(http.StatusNotFound, format, args...) }

func answer(w http.ResponseWriter, status int, body any) {
	content, err := json.Marshal(body)
	if err != nil {
		panic(err) // every body is made of types that marshal
	}
	answerJSON(w, status, content)
}

// Header values that never differ, made once; their names are in the form that needs no canonicalising.
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

// answerError writes OpenWhisk's error form. Clients want both keys; the code names the transaction.
func answerError(w http.ResponseWriter, err error) {
	status := statusOf(err)
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	answer(w, status, map[string]string{"error": err.Error(), "code": w.Header().Get(requestID)})
}

// statusOf is the HTTP status of an error; 0 where there is none.
func statusOf(err error) int {
	var refusal *entity.Refusal
	var tooMany *access.TooMany
	switch {
	case err == nil:
		return 0
	case errors.As(err, &refusal):
		return refusal.Status
	case errors.As(err, &tooMany):
		return http.StatusTooManyRequests
	}
	return http.StatusInternalServerError
}

const requestID = "X-Request-Id" // in canonical form

// begin gives the request its transaction id, which is the answer's too: the caller's own, or a fresh one.
func begin(w http.ResponseWriter, r *http.Request) (transaction string) {
	transaction = r.Header.Get(requestID)
	if !plain(transaction) {
		transaction = activation.NewID()
	}
	w.Header()[requestID] = []string{transaction}
	return transaction
}

func plain(id string) bool {
	for _, c := range []byte(id) {
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return len(id) > 0 && len(id) <= 64
}

// A body that is larger than most is read by few at once, so that they bound the memory together.
const smallBody = entity.MaxArguments + 1

var largeBodies = make(chan struct{}, 8)

// readBody reads a JSON body of at most limit bytes.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if kind := r.Header.Get("Content-Type"); kind != "" && kind != jsonType[0] {
		if media, _, err := mime.ParseMediaType(kind); err != nil || media != jsonType[0] {
			return nil, fail(http.StatusUnsupportedMediaType, "the content type is %q; application/json is supported", kind)
		}
	}
	return readBytes(w, r, limit)
}

// readBytes reads a body of at most limit bytes.
func readBytes(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength > limit {
		w.Header().Set("Connection", "close") // the rest is not worth reading
		return nil, fail(http.StatusRequestEntityTooLarge, "the request has %d bytes; at most %d", r.ContentLength, limit)
	}
	if r.ContentLength == 0 {
		return nil, nil
	}
	var body []byte
	var err error
	if r.ContentLength > 0 && r.ContentLength <= smallBody {
		body = make([]byte, r.ContentLength) // no more: it is kept while the call waits
		_, err = io.ReadFull(r.Body, body)
	} else {
		body, err = readLarge(w, r, limit)
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, fail(http.StatusRequestEntityTooLarge, "the request is larger than %d bytes", limit)
	case err != nil:
		return nil, badRequest("the request could not be read: %v", err)
	}
	return body, nil
}

func readLarge(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	var body bytes.Buffer
	rest := http.MaxBytesReader(w, r.Body, limit)
	if n, err := io.CopyN(&body, rest, smallBody); n < smallBody {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return body.Bytes(), err
	}
	select {
	case largeBodies <- struct{}{}:
		defer func() { <-largeBodies }()
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	_, err := io.Copy(&body, rest)
	return body.Bytes(), err
}

// readInto reads a JSON body that must be valid as a whole.
func readInto(w http.ResponseWriter, r *http.Request, limit int64, into any) error {
	body, err := readBody(w, r, limit)
	if err != nil {
		return err
	}
	return entity.Decode(body, into)
}

// number reads a query parameter within [least, most].
func number(query url.Values, name string, otherwise, least, most int64) (int64, error) {
	text := query.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most {
		return 0, badRequest("the query parameter %s is %q; it must be a number from %d to %d", name, text, least, most)
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
		return false, badRequest("the query parameter %s is %q; it must be true or false", name, text)
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

// answerList cuts a list to what limit and skip ask for; with count=true it answers the number of items instead.
func answerList[T any](w http.ResponseWriter, r *http.Request, collection string, list []T, show func(T) any) error {
	p, err := readWindow(r.URL.Query())
	if err != nil {
		return err
	}
	list = list[min(p.skip, len(list)):]
	if p.count {
		answer(w, http.StatusOK, map[string]int{collection: len(list)})
		return nil
	}
	rows := []any{}
	for _, item := range list[:min(p.limit, len(list))] {
		rows = append(rows, show(item))
	}
	answer(w, http.StatusOK, rows)
	return nil
}

// buffers are for answers that are written many times a second.
var buffers = sync.Pool{New: func() any { return new([]byte) }}
