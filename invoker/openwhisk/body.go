package openwhisk

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/share"
)

// Bodies are held in memory: while they come, and if they are a call's arguments, until the call
// has ended. All of them together have a bound, and each namespace has a share of it
// (Config.Bodies). Beyond it a body is refused, as a rule before any of it is read.
//
// A holding counts the bytes that one request or one call holds. Bytes are counted before they are
// read, in steps, so that a caller who announces much and sends little holds little.
type holding struct {
	of   *share.Whole
	part *share.Part
	n    int64
}

func (a *API) holding(user *access.Identity) holding {
	return holding{of: a.bodies, part: &user.Bytes}
}

// upTo has it hold n bytes, if it holds less.
func (h *holding) upTo(n int64) error {
	if n <= h.n {
		return nil
	}
	err := h.of.Take(h.part, n-h.n)
	if err == nil {
		h.n = n
	}
	return h.explain(err)
}

// fits refuses at once what could not be held as a whole now.
func (h *holding) fits(n int64) error { return h.explain(h.of.Fits(h.part, n)) }

func (h *holding) explain(err error) error {
	if err == nil {
		return nil
	}
	held := fmt.Sprintf("%d MiB of %d are in use", h.of.Used()>>20, h.of.Size()>>20)
	if errors.Is(err, share.ErrPart) {
		return &access.TooMany{Limit: access.BytesAtOnce, Why: fmt.Sprintf(
			"too much in flight: the requests and waiting calls of the namespace hold %d MiB, and %s;"+
				" try again when some have ended", h.part.Held()>>20, held)}
	}
	return &access.TooMany{Limit: access.BytesOfAll, Why: "too much in flight from all: " + held +
		"; try again"}
}

// force is upTo for bytes that are there and cannot be refused.
func (h *holding) force(n int64) {
	h.of.Force(h.part, n-h.n)
	h.n = n
}

// passOn is the same holding in other hands.
func (h *holding) passOn() holding {
	passed := *h
	h.n = 0
	return passed
}

func (h *holding) end() {
	if h.n > 0 {
		h.of.Give(h.part, h.n)
		h.n = 0
	}
}

// readBody reads a JSON body of at most limit bytes.
func (rq *request) readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if kind := r.Header.Get("Content-Type"); kind != "" && kind != jsonType[0] {
		if media, _, err := mime.ParseMediaType(kind); err != nil || media != jsonType[0] {
			return nil, fail(http.StatusUnsupportedMediaType,
				"the content type is %q; application/json is supported", kind)
		}
	}
	return rq.readBytes(w, r, limit)
}

// readBytes reads a body of at most limit bytes, which the request holds from then on.
func (rq *request) readBytes(w http.ResponseWriter, r *http.Request,
	limit int64) (body []byte, err error) {
	length := r.ContentLength
	switch {
	case length == 0:
		return nil, nil
	case length > limit:
		err = fail(http.StatusRequestEntityTooLarge,
			"the request has %d bytes; at most %d", length, limit)
	case length > 0:
		if err = rq.bytes.fits(length); err == nil {
			body, err = rq.bytes.read(r.Body, length)
		}
	default:
		body, err = rq.bytes.read(http.MaxBytesReader(w, r.Body, limit), limit+1)
		if errors.Is(err, io.EOF) { // the end was not announced
			err = nil
		}
	}
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return body, nil
	case errors.As(err, &tooLarge):
		err = fail(http.StatusRequestEntityTooLarge, "the request is larger than %d bytes", limit)
	case statusOf(err) == http.StatusInternalServerError:
		err = badRequest("the request could not be read: %v", err)
	}
	if r.ProtoMajor == 1 { // of HTTP/2 only the request's stream ends
		w.Header().Set("Connection", "close") // the rest is not worth reading
	}
	return nil, err
}

// firstRead is the size of the first read, before it has shown that more comes.
const firstRead = 8 << 10

// read reads most bytes, or up to an error, which may be io.EOF.
func (h *holding) read(from io.Reader, most int64) ([]byte, error) {
	var body []byte
	for size := min(firstRead, most); ; size = min(2*size, most) {
		if err := h.upTo(size); err != nil {
			return nil, err
		}
		body = append(make([]byte, 0, size), body...)
		for len(body) < cap(body) {
			n, err := from.Read(body[len(body):cap(body)])
			body = body[:len(body)+n]
			if err != nil && (int64(len(body)) < most || !errors.Is(err, io.EOF)) {
				return body, err
			}
		}
		if size == most {
			return body, nil
		}
	}
}

// readInto reads a JSON body that must be valid as a whole.
func (rq *request) readInto(w http.ResponseWriter, r *http.Request, limit int64, into any) error {
	body, err := rq.readBody(w, r, limit)
	if err != nil {
		return err
	}
	return entity.Decode(body, into)
}
