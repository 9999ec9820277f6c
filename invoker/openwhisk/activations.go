package openwhisk

import (
	"encoding/hex"
	"errors"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/store"
)

func (a *API) listActivations(w http.ResponseWriter, r *http.Request, rq *request) error {
	namespace, err := rq.own()
	if err != nil {
		return err
	}
	query := r.URL.Query()
	filter, err := readFilter(query, namespace)
	if err != nil {
		return err
	}
	p, err := readWindow(query)
	if err != nil {
		return err
	}
	full, err := flag(query, "docs", false)
	if err != nil {
		return err
	}
	if p.count {
		if full {
			return badRequest("the query parameters count and docs cannot both be true")
		}
		n, err := a.cfg.Store.Count(r.Context(), filter)
		if err == nil {
			answer(w, http.StatusOK, map[string]int{"activations": max(n-p.skip, 0)})
		}
		return err
	}
	out := list{w: w, bytes: &rq.bytes}
	err = a.cfg.Store.List(r.Context(), filter, p.skip, p.limit, func(body []byte) error {
		if full {
			if err := rq.bytes.upTo(2 * int64(len(body))); err != nil { // it, and it as JSON
				return err
			}
		}
		var record activation.Record
		if err := record.UnmarshalBinary(body); err != nil {
			return err
		}
		if full {
			return out.row(record.AppendJSON)
		}
		return out.row(record.AppendSummary)
	})
	return out.end(err)
}

// readFilter reads name, since and upto. A name may be an action's, package/action, or either fully
// qualified.
func readFilter(query url.Values, namespace string) (f store.Filter, err error) {
	f.Namespace, f.Name = namespace, query.Get("name")
	if rest, qualified := strings.CutPrefix(f.Name, "/"); qualified {
		_, f.Name, _ = strings.Cut(rest, "/")
	}
	if parts := strings.Split(f.Name, "/"); len(parts) == 3 {
		f.Name = parts[1] + "/" + parts[2]
	} else if len(parts) > 3 {
		return f, badRequest(
			"the query parameter name is %.300q; it must be an action's or package/action",
			query.Get("name"))
	}
	for parameter, bound := range map[string]*time.Time{"since": &f.Since, "upto": &f.Upto} {
		ms, err := number(query, parameter, 0, 0, math.MaxInt64/int64(time.Millisecond))
		if err != nil {
			return f, err
		}
		if ms > 0 {
			*bound = time.UnixMilli(ms)
		}
	}
	return f, nil
}

func (a *API) activation(r *http.Request, rq *request) (record activation.Record, err error) {
	namespace, err := rq.own()
	if err != nil {
		return record, err
	}
	id := r.PathValue("id")
	if raw, err := hex.DecodeString(id); err != nil || len(raw) != 16 {
		return record, badRequest("%.100q is no activation's id, which is 32 hexadecimal digits",
			id)
	}
	body, err := a.cfg.Store.Get(r.Context(), namespace, id)
	switch {
	case err == nil:
		// the record, and what is shown of it
		if err = rq.bytes.upTo(2 * int64(len(body))); err == nil {
			err = record.UnmarshalBinary(body)
		}
	case errors.Is(err, store.ErrNotFound):
		err = notFound("there is no activation %q; it may not have finished yet, or be too old", id)
	}
	return record, err
}

func (a *API) getActivation(w http.ResponseWriter, r *http.Request, rq *request) error {
	record, err := a.activation(r, rq)
	if err != nil {
		return err
	}
	rq.answerJSON(w, http.StatusOK, record.AppendJSON(nil))
	return nil
}

func (a *API) getLogs(w http.ResponseWriter, r *http.Request, rq *request) error {
	record, err := a.activation(r, rq)
	if err == nil {
		rq.answer(w, http.StatusOK,
			map[string][]string{"logs": append([]string{}, record.Logs...)})
	}
	return err
}

func (a *API) getResult(w http.ResponseWriter, r *http.Request, rq *request) error {
	record, err := a.activation(r, rq)
	if err == nil {
		rq.answer(w, http.StatusOK, record.Outcome())
	}
	return err
}
