package openwhisk

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fastiov/fastiov/invoker/activation"
)

// images tells which runtime image of the node runs a kind.
var images = map[string]string{
	"python:default": "python:3",
	"python:3":       "python:3",
	"nodejs:default": "nodejs:18",
	"nodejs:18":      "nodejs:18",
}

// blackbox is the kind whose image the action names itself.
const blackbox = "blackbox"

// An action as it is kept. It never changes: an update makes another.
type action struct {
	Namespace   string            `json:"namespace"`
	Name        string            `json:"name"`
	Version     string            `json:"version"`
	Publish     bool              `json:"publish"`
	Exec        exec              `json:"exec"`
	Annotations []keyValue        `json:"annotations"`
	Parameters  []keyValue        `json:"parameters"`
	Limits      activation.Limits `json:"limits"`
	Updated     int64             `json:"updated"` // Unix milliseconds

	revision int // of all actions that ever were: names this one's sandboxes
	patch    int // last number of Version
}

type exec struct {
	Kind   string  `json:"kind"`
	Code   *string `json:"code,omitempty"`
	Main   string  `json:"main,omitempty"`
	Image  string  `json:"image,omitempty"`
	Binary *bool   `json:"binary,omitempty"`
}

type keyValue struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

// A change is the body of PUT: what is absent keeps its value, or gets its default.
type change struct {
	Exec           *exec         `json:"exec"`
	Limits         *limitsChange `json:"limits"`
	Annotations    *[]keyValue   `json:"annotations"`
	Parameters     *[]keyValue   `json:"parameters"`
	DelAnnotations []string      `json:"delAnnotations"`
	Publish        *bool         `json:"publish"`
}

type limitsChange struct {
	Timeout     *int `json:"timeout"`
	Memory      *int `json:"memory"`
	Logs        *int `json:"logs"`
	Concurrency *int `json:"concurrency"`
}

const (
	maxCode       = 48 << 20
	maxParameters = 1 << 20
	maxPutBody    = maxCode*4/3 + 2*maxParameters // the code as base64, and the rest
)

func (a *action) path() string  { return a.Namespace + "/" + a.Name }
func (a *action) group() string { return fmt.Sprintf("%s@%d", a.path(), a.revision) }

func (a *action) image() string {
	if a.Exec.Kind == blackbox {
		return a.Exec.Image
	}
	return images[a.Exec.Kind]
}

// code is empty where there is none.
func (e exec) code() string {
	if e.Code == nil {
		return ""
	}
	return *e.Code
}

// changed returns the action that the change makes of a; the zero action is one yet to be created.
func (a *action) changed(by change, now time.Time) (*action, error) {
	next := *a
	next.patch++
	next.Version = fmt.Sprintf("0.0.%d", next.patch)
	next.Updated = now.UnixMilli()
	if next.Limits == (activation.Limits{}) {
		next.Limits = activation.Limits{TimeoutMs: 60_000, MemoryMB: 256, LogsMB: 10, Concurrency: 1}
	}
	if by.Publish != nil {
		next.Publish = *by.Publish
	}
	if by.Exec != nil {
		next.Exec = *by.Exec
	} else if a.Version == "" {
		return nil, badRequest("exec is missing: say the action's kind and code")
	}
	if by.Parameters != nil {
		next.Parameters = *by.Parameters
	}
	for _, step := range []func() error{
		next.checkExec,
		func() error { return next.setLimits(by.Limits) },
		func() error { return next.annotate(by) },
		func() error { return checkPairs("parameters", next.Parameters) },
		func() error { return checkPairs("annotations", next.Annotations) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return &next, nil
}

var imageName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._/:@-]{0,254}$`)

func (a *action) checkExec() error {
	e := &a.Exec
	_, known := images[e.Kind]
	switch {
	case e.Kind == blackbox && !imageName.MatchString(e.Image):
		return badRequest("exec.image is %q; kind blackbox needs the reference of an image", e.Image)
	case e.Kind != blackbox && !known:
		return badRequest("exec.kind is %q; served are %s and %s", e.Kind, strings.Join(slices.Sorted(maps.Keys(images)), ", "), blackbox)
	case known && e.code() == "":
		return badRequest("exec.code is missing")
	case len(e.code()) > maxCode*4/3:
		return fail(413, "exec.code has %d bytes; at most %d", len(e.code()), maxCode*4/3)
	}
	encoded := isBase64(e.code())
	if e.Binary == nil {
		e.Binary = &encoded
	}
	if *e.Binary && !encoded {
		return badRequest("exec.binary is set but exec.code is not base64")
	}
	return nil
}

// isBase64 is how OpenWhisk tells an archive from source: clients do not say.
func isBase64(code string) bool {
	code = strings.TrimSpace(code)
	if code == "" || len(code)%4 != 0 {
		return false
	}
	_, err := base64.StdEncoding.DecodeString(code)
	return err == nil
}

func (a *action) setLimits(by *limitsChange) error {
	if by == nil {
		return nil
	}
	for _, limit := range []struct {
		name        string
		to          *int
		set         *int
		least, most int
	}{
		{"timeout", by.Timeout, &a.Limits.TimeoutMs, 100, 300_000},
		{"memory", by.Memory, &a.Limits.MemoryMB, 128, 512},
		{"logs", by.Logs, &a.Limits.LogsMB, 0, 10},
		{"concurrency", by.Concurrency, &a.Limits.Concurrency, 1, 1},
	} {
		if limit.to == nil {
			continue
		}
		if *limit.to < limit.least || *limit.to > limit.most {
			return badRequest("limits.%s is %d; it must be from %d to %d", limit.name, *limit.to, limit.least, limit.most)
		}
		*limit.set = *limit.to
	}
	return nil
}

// annotate merges annotations by key, and keeps the two that are the server's to add.
func (a *action) annotate(by change) error {
	kind, err := json.Marshal(a.Exec.Kind)
	if err != nil {
		return err
	}
	var list []keyValue
	set := func(pairs ...keyValue) {
		for _, pair := range pairs {
			list = slices.DeleteFunc(list, func(other keyValue) bool { return other.Key == pair.Key })
			list = append(list, pair)
		}
	}
	set(keyValue{"provide-api-key", json.RawMessage("false")})
	set(a.Annotations...)
	list = slices.DeleteFunc(list, func(pair keyValue) bool { return slices.Contains(by.DelAnnotations, pair.Key) })
	if by.Annotations != nil {
		set(*by.Annotations...)
	}
	set(keyValue{"exec", kind})
	a.Annotations = list
	return nil
}

func checkPairs(what string, pairs []keyValue) error {
	size := 0
	for _, pair := range pairs {
		if pair.Key == "" {
			return badRequest("%s: a key is empty", what)
		}
		size += len(pair.Key) + len(pair.Value)
	}
	if size > maxParameters {
		return fail(413, "%s have %d bytes; at most %d", what, size, maxParameters)
	}
	return nil
}

// shown is the action for GET; without code where the caller does not want it.
func (a *action) shown(code bool) *action {
	shown := *a
	if !code {
		shown.Exec.Code = nil
	}
	if shown.Annotations == nil {
		shown.Annotations = []keyValue{}
	}
	if shown.Parameters == nil {
		shown.Parameters = []keyValue{}
	}
	return &shown
}

// summary is a list's row.
func (a *action) summary() any {
	return map[string]any{
		"namespace": a.Namespace, "name": a.Name, "version": a.Version, "publish": a.Publish, "annotations": a.Annotations,
		"limits": a.Limits, "updated": a.Updated, "exec": map[string]bool{"binary": *a.Exec.Binary},
	}
}
