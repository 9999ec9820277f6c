package openwhisk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"

	"github.com/fastiov/fastiov/invoker/activation"
)

// A failure is an error with its HTTP status; its message is for the caller.
type failure struct {
	status  int
	message string
}

func (f *failure) Error() string { return f.message }

func fail(status int, format string, args ...any) error {
	return &failure{status, fmt.Sprintf(format, args...)}
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
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(content) // the caller has gone: nobody is left to tell
}

// answerError writes OpenWhisk's error form. Clients want both keys; the code names the transaction.
func answerError(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	var f *failure
	if errors.As(err, &f) {
		status = f.status
	}
	answer(w, status, map[string]string{"error": err.Error(), "code": w.Header().Get("X-Request-ID")})
}

// begin gives the request its transaction id, which is the answer's too.
func begin(w http.ResponseWriter) (transaction string) {
	transaction = activation.NewID()
	w.Header().Set("X-Request-ID", transaction)
	return transaction
}

// readBody reads a JSON body of at most limit bytes.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if kind := r.Header.Get("Content-Type"); kind != "" {
		if media, _, err := mime.ParseMediaType(kind); err != nil || media != "application/json" {
			return nil, fail(http.StatusUnsupportedMediaType, "the content type is %q; application/json is supported", kind)
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, fail(http.StatusRequestEntityTooLarge, "the request is larger than %d bytes", limit)
	case err != nil:
		return nil, badRequest("the request could not be read: %v", err)
	}
	return body, nil
}

// decode reads JSON that must be valid as a whole.
func decode(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return badRequest("the request content is malformed: %v", err)
	}
	return nil
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

// page cuts a list to what limit and skip ask for; with count=true it answers the number of items instead.
func page[T any](w http.ResponseWriter, r *http.Request, collection string, list []T, show func(T) any) error {
	const most = 200
	query := r.URL.Query()
	limit, err := number(query, "limit", 30, 0, most)
	if err != nil {
		return err
	}
	skip, err := number(query, "skip", 0, 0, 1<<31)
	if err != nil {
		return err
	}
	count, err := flag(query, "count", false)
	if err != nil {
		return err
	}
	list = list[min(int(skip), len(list)):]
	if count {
		answer(w, http.StatusOK, map[string]int{collection: len(list)})
		return nil
	}
	if limit == 0 {
		limit = most
	}
	rows := []any{}
	for _, item := range list[:min(int(limit), len(list))] {
		rows = append(rows, show(item))
	}
	answer(w, http.StatusOK, rows)
	return nil
}
