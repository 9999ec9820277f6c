package entity

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
)

// The kinds that no runtime family has: an image that the action names itself, and a chain of other
// actions.
const (
	Blackbox = "blackbox"
	Sequence = "sequence"
)

// An Action is a function, or a sequence of others. It does not hold its code, so that little is
// kept in memory.
type Action struct {
	Common
	Exec       Exec              `json:"exec"`
	Parameters Pairs             `json:"parameters"`
	Limits     activation.Limits `json:"limits"`
}

// Exec says how an action is run. Code is set on its way in and out only.
type Exec struct {
	Kind       string   `json:"kind"`
	Code       *string  `json:"code,omitempty"`
	Main       string   `json:"main,omitempty"`
	Image      string   `json:"image,omitempty"`
	Components []string `json:"components,omitempty"` // fully qualified names
	Binary     *bool    `json:"binary"`               // clients need it to be there
}

// An ActionChange is the body of a PUT: a field that is absent keeps its value, or gets its
// default.
type ActionChange struct {
	CommonChange
	Exec           *Exec         `json:"exec"`
	Parameters     *Pairs        `json:"parameters"`
	Limits         *LimitsChange `json:"limits"`
	DelAnnotations []string      `json:"delAnnotations"`
}

// MaxCode bounds an action's source or archive; an archive comes as base64.
const MaxCode = 48 << 20

// MaxComponents bounds a sequence.
const MaxComponents = 50

// Rules holds the rules that an action is checked against.
type Rules struct {
	Runtimes *Runtimes
	Limits   Bounds
}

// Changed returns the action that a change makes of a, and its code; nil stands for code that stays
// as it was.
func (a *Action) Changed(by ActionChange, rules Rules, now time.Time) (*Action, []byte, error) {
	next := *a
	annotations := given(by.Annotations, nil)
	by.Annotations = nil
	if err := next.change(by.CommonChange, now); err != nil {
		return nil, nil, err
	}
	code, err := next.setExec(by.Exec, rules.Runtimes)
	if err != nil {
		return nil, nil, err
	}
	if next.Parameters = given(by.Parameters, next.Parameters); next.Exec.Kind == Sequence {
		next.Parameters = nil // its components have theirs
	}
	if err := next.Parameters.check("parameters"); err != nil {
		return nil, nil, err
	}
	if next.Limits == (activation.Limits{}) {
		next.Limits = rules.Limits.Standard()
	}
	if err := rules.Limits.apply(&next.Limits, by.Limits); err != nil {
		return nil, nil, err
	}
	next.annotate(annotations, by.DelAnnotations)
	return &next, code, next.Annotations.check("annotations")
}

func (a *Action) setExec(e *Exec, runtimes *Runtimes) (code []byte, err error) {
	if e == nil {
		if a.IsNew() || a.Exec.Kind == "" {
			return nil, bad("exec is missing: say the action's kind and code")
		}
		return nil, nil
	}
	next := *e
	if e.Code != nil {
		code = []byte(*e.Code)
	}
	if next.Code = nil; code == nil {
		code = []byte{} // another exec without code has none, whatever was there
	}
	if err := next.check(a.Path().Namespace, len(code) > 0, runtimes); err != nil {
		return nil, err
	}
	if len(code) > MaxCode*4/3 {
		return nil, Refuse(http.StatusRequestEntityTooLarge, "exec.code has %d bytes; at most %d",
			len(code), MaxCode*4/3)
	}
	encoded := isBase64(*e)
	if next.Binary == nil {
		next.Binary = &encoded
	}
	if *next.Binary && !encoded {
		return nil, bad("exec.binary is set but exec.code is not base64")
	}
	a.Exec = next
	return code, nil
}

var imageName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._/:@-]{0,254}$`)

func (e *Exec) check(own string, hasCode bool, runtimes *Runtimes) error {
	switch e.Kind {
	case Sequence:
		return e.checkComponents(own)
	case Blackbox:
		e.Components = nil
		if !imageName.MatchString(e.Image) {
			return bad("exec.image is %.300q; kind blackbox needs the reference of an image",
				e.Image)
		}
		return nil
	}
	kind, err := runtimes.Resolve(e.Kind)
	if err != nil {
		return err
	}
	e.Kind, e.Components, e.Image = kind, nil, ""
	if !hasCode {
		return bad("exec.code is missing")
	}
	return nil
}

func (e *Exec) checkComponents(own string) error {
	if len(e.Components) == 0 {
		return bad("exec.components is empty; a sequence needs one action or more")
	}
	if len(e.Components) > MaxComponents {
		return bad("exec.components names %d actions; at most %d", len(e.Components), MaxComponents)
	}
	whole := make([]string, len(e.Components))
	for i, name := range e.Components {
		path, err := ParsePath(name, own)
		if err != nil {
			return err
		}
		whole[i] = path.String()
	}
	e.Components = whole
	return nil
}

// isBase64 reports whether the code is an archive and not source, by OpenWhisk's rule: clients do
// not say.
func isBase64(e Exec) bool {
	if e.Code == nil {
		return false
	}
	code := strings.TrimSpace(*e.Code)
	if code == "" || len(code)%4 != 0 {
		return false
	}
	_, err := base64.StdEncoding.DecodeString(code)
	return err == nil
}

// annotate merges annotations by key, and keeps the two that are the server's to add.
func (a *Action) annotate(given Pairs, gone []string) {
	list := a.Annotations
	if _, said := list.Get("provide-api-key"); !said {
		list = Pairs{{Key: "provide-api-key", Value: json.RawMessage("false")}}.With(list...)
	}
	kind, err := json.Marshal(a.Exec.Kind)
	if err != nil {
		panic(err) // a text always marshals
	}
	a.Annotations = list.Without(gone...).With(given...).With(Pair{Key: "exec", Value: kind})
}

// Image is the runtime image that runs the action.
func (a *Action) Image(runtimes *Runtimes) string {
	if a.Exec.Kind == Blackbox {
		return a.Exec.Image
	}
	return runtimes.Image(a.Exec.Kind)
}

// Shown is the action for GET, with code where it is given.
func (a *Action) Shown(code []byte) *Action {
	shown := *a
	if len(code) > 0 {
		text := string(code)
		shown.Exec.Code = &text
	}
	return &shown
}

// Summary is a list's row.
func (a *Action) Summary() any {
	return struct {
		Common
		Exec   map[string]bool   `json:"exec"`
		Limits activation.Limits `json:"limits"`
	}{a.Common, map[string]bool{"binary": *a.Exec.Binary}, a.Limits}
}
