package openwhisk

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/store"
)

// A caller who does not wait is promised a record, and the promise outlives this process. So it is
// written down before the caller hears of it, and that its /run leaves is written down before it
// does. The three happen in any order, each once:
//
//	promise   the caller is told that it need not wait: now, or when it has waited long enough
//	markSent  the /run is about to be sent; a promise made later says so from the start
//	finish    the record is there, and the promise kept
type promised struct {
	mu         sync.Mutex
	made, sent bool
	over       bool // its record is there
	elsewhere  bool // another process sent it and has its record
}

// expiry is the time for which a promise is good. A call that has not been sent by then never is.
const expiry = time.Hour

// age returns how long ago a call was accepted: by the monotonic clock if this process accepted it,
// by the wall clock if the time was read back. The wall clock may have been set back, so age is
// never negative.
func age(accepted time.Time) time.Duration { return max(time.Since(accepted), 0) }

// noteWithin bounds the wait for the store, which goes on when the caller has gone.
const noteWithin = 10 * time.Second

func noting(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), noteWithin)
}

// A note holds what is needed to keep a promise after a crash.
type note struct {
	Subject     string      `json:"subject"`
	Namespace   string      `json:"namespace"`
	Action      entity.Path `json:"action"` // as it was named
	Version     string      `json:"version"`
	Kind        string      `json:"kind"`
	Transaction string      `json:"transaction"`
	Cause       string      `json:"cause,omitempty"`
	CausedBy    string      `json:"causedBy,omitempty"`
	// The caller's key, only if the action asks for it.
	Sealed *sealed `json:"sealed,omitempty"`
	// The key in a note of a former version, which kept it in clear.
	Key       *access.Key     `json:"key,omitempty"`
	Arguments json.RawMessage `json:"arguments"`
}

// key is the caller's, which only some promises keep.
func (n *note) key(seal *Seal, id string) (access.Key, error) {
	switch {
	case n.Sealed != nil:
		return seal.open(n.Sealed, id)
	case n.Key != nil:
		return *n.Key, nil
	}
	return access.Key{}, nil
}

// promise fails where the promise may or may not have been written. The record of that failure
// takes the promise back, and a call that has not been sent by then never is.
func (v *invocation) promise(ctx context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.made || v.over {
		return nil
	}
	n := note{
		Subject: v.user.Subject, Namespace: v.user.Namespace, Action: v.on.named(),
		Version: v.on.Version, Kind: v.on.Exec.Kind,
		Transaction: v.transaction, Cause: v.cause, CausedBy: v.causedBy, Arguments: v.arguments,
	}
	if v.api.mayNeedKey(v.user, v.on) {
		n.Sealed = v.api.cfg.Seal.close(v.key, v.id)
	}
	body, err := json.Marshal(n)
	if err != nil {
		return err
	}
	err = v.api.accept(ctx, store.Accepted{ID: v.id, Namespace: v.user.Namespace, At: v.accepted,
		Sent: v.sent, Body: body})
	switch {
	case err != nil && v.sent: // it runs; a caller that is refused would call again
		return fmt.Errorf("%w: %w", errUnknown, err)
	case err != nil:
		v.over = true
		return v.api.takeBack(ctx, v.failed(activation.InternalError, err.Error()), err)
	}
	v.made = true
	return nil
}

// accept has the store keep a promise of this invoker, also for a caller who goes away meanwhile.
func (a *API) accept(ctx context.Context, p store.Accepted) error {
	ctx, stop := noting(ctx)
	defer stop()
	p.Invoker = a.cfg.Invoker
	err := a.cfg.Store.Accept(ctx, p)
	if err == nil {
		return nil
	}
	refusal := fail(http.StatusServiceUnavailable,
		"the activation could not be promised: %v; try again", err)
	return &unpromised{refusal, err}
}

// unpromised is a promise that could not be made, in words for its caller and for what the store
// said.
type unpromised struct {
	error
	why error
}

func (u *unpromised) Unwrap() []error { return []error{u.error, u.why} }

// errUnknown is the error of a call that may or may not be promised. Its caller gets no answer: any
// answer could turn out wrong after a crash.
var errUnknown = errors.New("it is not known whether the activation is promised")

// settleWithin bounds the wait of a caller for the store to forget a promise.
const settleWithin = 20 * time.Second

// takeBack returns once a promise that could not be made, or only perhaps, is gone for good: then
// its caller may be told so.
func (a *API) takeBack(ctx context.Context, refused *activation.Record, why error) error {
	if errors.Is(why, store.ErrNotKept) {
		a.cfg.Store.Finish(refused.Kept())
		return why
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer stop()
	if err := a.cfg.Store.Refuse(ctx, refused.Kept()); err != nil {
		a.cfg.Log.Error("a caller is left without an answer; check the store",
			"activation", refused.ID, "err", fmt.Errorf("%w: %w", errUnknown, err))
		return fmt.Errorf("%w: %w", errUnknown, why)
	}
	return why
}

// markSent notes that the /run is about to be sent: the first of them, where there are several
// steps.
func (v *invocation) markSent(ctx context.Context) error {
	v = v.topmost()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.over {
		return errors.New("its caller was told that it would not run")
	}
	if v.made && !v.sent {
		if v.api.closing.Load() {
			return errors.New("it is left to the next invoker")
		}
		ctx, stop := noting(ctx)
		defer stop()
		err := v.api.cfg.Store.Sent(ctx, v.id)
		v.elsewhere = errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrReplaced)
		if err != nil {
			return fmt.Errorf("that it was sent could not be noted: %w", err)
		}
	}
	if !v.sent {
		v.api.sent.Add(1)
	}
	v.sent = true
	return nil
}

// unmarkSent counts the call as over, if it was sent.
func (v *invocation) unmarkSent() {
	if v.within != nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.sent {
		v.api.sent.Add(-1)
	}
}

// topmost returns the invocation that is promised: for a step, that of the outermost composition.
func (v *invocation) topmost() *invocation {
	for v.within != nil {
		v = v.within.invocation
	}
	return v
}

// finish keeps the record. A promise that the end of this process keeps from being sent is kept by
// the next: then there is none yet.
func (v *invocation) finish(r *activation.Record) bool {
	top := v.topmost()
	top.mu.Lock()
	defer top.mu.Unlock()
	if top.elsewhere || top.made && !top.sent && v.api.closing.Load() {
		return false
	}
	if top == v {
		if v.over {
			return true
		}
		v.over = true
	}
	v.api.cfg.Store.Finish(r.Kept())
	return true
}

// named is the path that leads to the action, through the binding if there was one.
func (r *resolved) named() entity.Path {
	path := r.path
	if r.binding != "" {
		path.Namespace, path.Package, _ = strings.Cut(r.binding, "/")
	}
	return path
}

// keepPromises takes up the promises that were not finished when this invoker last ended. It runs
// the calls that were not sent. It records as failed those that may have been sent, for they are
// never run again.
func (a *API) keepPromises(ctx context.Context) error {
	left, err := a.cfg.Store.Unfinished(ctx, a.cfg.Invoker)
	if err != nil {
		return fmt.Errorf("what was promised: %w", err)
	}
	for _, accepted := range left {
		a.keepPromise(accepted)
	}
	if len(left) > 0 {
		a.cfg.Log.Info("activations that were promised before the restart are taken up",
			"count", len(left))
	}
	return nil
}

// adoptEvery is the time between searches for promises of invokers that have ended.
const adoptEvery = 5 * time.Second

func (a *API) adoptPromises(ctx context.Context) {
	each := time.NewTicker(adoptEvery)
	defer each.Stop()
	for {
		select {
		case <-each.C:
			a.adopt(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// adopt takes up the promises of invokers that have ended. If the store does not answer, the next
// look finds what this one did not.
func (a *API) adopt(ctx context.Context) {
	adopted, _ := a.cfg.Store.Adopt(ctx)
	for _, accepted := range adopted {
		a.keepPromise(accepted)
	}
	if len(adopted) > 0 {
		a.cfg.Log.Info("activations that another invoker promised, which is no more, are taken up",
			"count", len(adopted))
	}
}

func (a *API) keepPromise(p store.Accepted) {
	var n note
	err := json.Unmarshal(p.Body, &n)
	if err != nil {
		err = fmt.Errorf("what was kept of it cannot be read: %w", err)
	} else if p.Sent {
		err = errors.New("the invoker ended while it ran; it is not run twice")
	} else if age(p.At) > expiry {
		err = fmt.Errorf("expired, never started: it was promised more than %v ago; call it again",
			expiry)
	}
	var key access.Key
	if err == nil {
		key, err = n.key(a.cfg.Seal, p.ID)
	}
	n.Namespace = cmp.Or(n.Namespace, p.Namespace)
	usage := a.directory.Usage(n.Namespace)
	user, on := &access.Identity{Subject: n.Subject, Namespace: n.Namespace, Usage: usage},
		(*resolved)(nil)
	if err == nil {
		on, err = a.invocable(user, n.Action)
	}
	if err != nil {
		if n.Action.Name == "" { // its note cannot be read
			n.Action = entity.Path{Namespace: n.Namespace, Name: "unknown"}
		}
		now := time.Now()
		failed := &activation.Record{
			ID: p.ID, Namespace: n.Namespace, Name: n.Action.Name, Version: n.Version,
			Subject: n.Subject, Kind: n.Kind,
			Path: n.Action.String()[1:], Cause: n.Cause, CausedBy: n.CausedBy,
			Start: now, End: now, Wait: age(p.At),
			Response: activation.Failed(activation.InternalError, err.Error()),
		}
		a.cfg.Store.Finish(failed.Kept())
		return
	}
	v := &invocation{
		api: a, id: p.ID, promised: promised{made: true},
		call: call{
			user: user, key: key, on: on, arguments: n.Arguments, transaction: n.Transaction,
			accepted: p.At, cause: n.Cause, causedBy: n.CausedBy,
		},
	}
	v.wait = a.queueing(&v.call, 0)
	v.bytes = a.holding(user)
	v.bytes.force(int64(len(n.Arguments)))
	user.Resume()
	v.run(func(completion) { user.Done() })
}
