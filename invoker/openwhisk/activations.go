package openwhisk

import (
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/fastiov/fastiov/invoker/activation"
)

func (a *API) listActivations(w http.ResponseWriter, r *http.Request, namespace string) error {
	query := r.URL.Query()
	// Names may come qualified, as /guest/hello or guest/hello.
	name := query.Get("name")
	name = name[strings.LastIndex(name, "/")+1:]
	filter := activation.Filter{Namespace: namespace, Name: name}
	for parameter, bound := range map[string]*time.Time{"since": &filter.Since, "upto": &filter.Upto} {
		ms, err := number(query, parameter, 0, 0, math.MaxInt64/int64(time.Millisecond))
		if err != nil {
			return err
		}
		if ms > 0 {
			*bound = time.UnixMilli(ms)
		}
	}
	full, err := flag(query, "docs", false)
	if err != nil {
		return err
	}
	show := (*activation.Record).Summary
	if full {
		show = func(r *activation.Record) any { return r }
	}
	return page(w, r, "activations", a.activations.List(filter), show)
}

func (a *API) activation(r *http.Request, namespace string) (*activation.Record, error) {
	id := r.PathValue("id")
	if record := a.activations.Get(namespace, id); record != nil {
		return record, nil
	}
	return nil, notFound("there is no activation %q; it may not have finished yet, or be too old", id)
}

func (a *API) getActivation(w http.ResponseWriter, r *http.Request, namespace string) error {
	record, err := a.activation(r, namespace)
	if err == nil {
		answer(w, http.StatusOK, record)
	}
	return err
}

func (a *API) getLogs(w http.ResponseWriter, r *http.Request, namespace string) error {
	record, err := a.activation(r, namespace)
	if err == nil {
		answer(w, http.StatusOK, map[string][]string{"logs": append([]string{}, record.Logs...)})
	}
	return err
}

func (a *API) getResult(w http.ResponseWriter, r *http.Request, namespace string) error {
	record, err := a.activation(r, namespace)
	if err == nil {
		answer(w, http.StatusOK, record.Outcome())
	}
	return err
}
