package openwhisk

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/openwhisk/web"
)

// Web actions are for everybody: a caller who knows the URL calls them, in the name of the
// namespace that they are in and on its account.
const webBase = base + "/web/"

var webMethods = []string{"OPTIONS", "GET", "DELETE", "POST", "PUT", "HEAD", "PATCH"}

// web serves a web action.
func (a *API) web(w http.ResponseWriter, r *http.Request) {
	rq := &request{accepted: time.Now(), transaction: begin(w, r)}
	defer rq.bytes.end()
	web.Confine(w.Header())
	if err := a.serveWeb(w, r, rq); err != nil {
		a.metrics.refuse("web", err)
		answerError(w, err)
	}
}

func (a *API) serveWeb(w http.ResponseWriter, r *http.Request, rq *request) (err error) {
	if !slices.Contains(webMethods, r.Method) {
		w.Header().Set("Allow", strings.Join(webMethods, ", "))
		return notAllowed(w, r, rq)
	}
	at, on, err := a.findWeb(r, rq)
	if err != nil {
		return err
	}
	does := web.Action{Annotations: on.Annotations, Fixed: on.fixed, Knows: a.directory.Knows}
	own := on.Annotations.True("web-custom-options")
	if !own {
		shareWeb(w, r)
	}
	if r.Method == http.MethodOptions && !own {
		w.WriteHeader(http.StatusOK)
		return nil
	}
	caller := a.caller(r)
	if r.Method != http.MethodOptions && !does.Admits(r, caller) {
		return fail(http.StatusUnauthorized,
			"the web action wants another authentication than was supplied")
	}
	if err := rq.user.Call(rq.accepted, rq.user.Limits); err != nil {
		return err
	}
	begun := false
	defer func() {
		if !begun {
			rq.user.Done()
		}
	}()
	body, err := rq.readBytes(w, r, entity.MaxArguments)
	if err != nil {
		return err
	}
	arguments, err := does.Arguments(r, at.Rest, caller, body)
	if err != nil {
		return err
	}
	c, err := rq.callWith(on, arguments)
	if err != nil {
		return err
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // as in invoke
	begun = true
	started, err := a.start(r.Context(), c, a.cfg.Blocking)
	w.Header()[web.ActivationID] = []string{started.id}
	switch {
	case err != nil:
		return err
	case started.end == nil:
		return fail(http.StatusAccepted, "the action has not answered yet; its activation goes on")
	case started.end.refused != nil:
		return started.end.refused
	}
	rq.bytes.force(int64(len(started.end.record.Response.Result))) // until it is written
	p, err := web.Interpret(at.Extension, started.end.record.Response)
	if err == nil {
		p.Answer(w)
	}
	return err
}

// findWeb finds the action and, as its caller, its namespace. Its error is the same for a missing
// action as for one that is not exported.
func (a *API) findWeb(r *http.Request, rq *request) (at web.URL, on *resolved, err error) {
	nothing := notFound(
		"there is no web action at %.300q; its URL is %sNAMESPACE/PACKAGE|default/NAME[.http|.json|.html|.svg|.text]",
		r.URL.Path, webBase)
	path, in := strings.CutPrefix(r.URL.EscapedPath(), webBase)
	at, found := web.ParseURL(path)
	if !in || !found {
		return at, nil, nothing
	}
	if rq.user, err = a.directory.Owner(at.Action.Namespace); err != nil {
		return at, nil, nothing
	}
	rq.bytes = a.holding(rq.user)
	if on, err = a.invocable(rq.user, at.Action); err != nil || !on.Annotations.True("web-export") {
		return at, nil, nothing
	}
	if rq.namespace = rq.user.Namespace; rq.user.UUID == a.cfg.Key.UUID {
		rq.key = a.cfg.Key.Key // of all others only a hash is known
	}
	return at, on, nil
}

// shareWeb lets pages of any site call: the owner exported the action to everybody.
func shareWeb(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Allow-Methods", strings.Join(webMethods, ", "))
	h.Set("Access-Control-Allow-Headers",
		"Authorization, Origin, X-Requested-With, Content-Type, Accept, User-Agent")
	if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
		h.Set("Access-Control-Allow-Headers", asked)
	}
}

// caller returns the identity of a valid key, or nil. The well-known key says nothing if a page of
// another site could have sent it.
func (a *API) caller(r *http.Request) *access.Identity {
	if a.cfg.Key.wellKnown && (!isLoopback(hostOf(r)) || !fromHere(r)) {
		return nil
	}
	uuid, secret, _ := r.BasicAuth()
	user, err := a.directory.Identify(uuid, secret)
	if err != nil {
		return nil
	}
	return user
}
