package bus

import (
	"context"
	"errors"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/couch"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/message"
)

// The errors that callers read if an action was not run, in the words that they know from
// OpenWhisk.
const (
	removed  = "Action could not be found or may have been deleted."
	mismatch = "Action version is not compatible and cannot be invoked."
	unread   = "Action could not be fetched."
	banned   = "The action was not invoked due to a blacklisted namespace."
)

// handle does all that a message asks for, in one slot, which it gives back when the controller
// knows that the activation is over.
func (b *Bus) handle(ctx context.Context, value []byte) {
	b.counts.running.Add(1)
	release := func() { b.counts.running.Add(-1); b.places.give(1) }
	asked, err := message.DecodeActivation(value)
	if err != nil {
		b.cfg.Log.Error("a message is no activation, and names nobody who could be told",
			"error", err, "bytes", len(value))
		release()
		return
	}
	if (*b.blocked.Load())[asked.User.Namespace.Name] {
		b.cfg.Log.Warn("activation of a blocked namespace", "namespace", asked.User.Namespace.Name,
			"activation", asked.ID)
		b.acknowledge(ctx, asked, fallback(asked, activation.ApplicationError, banned), combined)
		release()
		return
	}
	record, order := b.run(ctx, asked)
	b.acknowledge(ctx, asked, record, order)
	b.stores <- struct{}{}
	release()
	b.store(ctx, asked, record)
	<-b.stores
}

// run gives the record of the activation, and in which order it is to be acknowledged.
func (b *Bus) run(ctx context.Context, asked *message.Activation) (*activation.Record, order) {
	action, err := b.actions.get(ctx, asked.Action.String(), asked.Revision)
	var other *couch.ErrMismatch
	switch {
	case err == nil:
	case errors.Is(err, couch.ErrNotFound):
		return fallback(asked, activation.ApplicationError, removed), combined
	case errors.As(err, &other):
		b.cfg.Log.Error("action cannot be run", "action", asked.Action, "error", err)
		return fallback(asked, activation.InternalError, mismatch), combined
	default:
		b.cfg.Log.Error("action cannot be fetched", "action", asked.Action, "error", err)
		return fallback(asked, activation.InternalError, unread), combined
	}
	record := b.runner.Run(ctx, Request{asked, action})
	if action.Limits.LogsMB > 0 {
		return record, split
	}
	return record, whole
}

// fallback is the record of an activation that reached no sandbox.
func fallback(asked *message.Activation, status activation.Status, why string) *activation.Record {
	now, version := time.Now(), asked.Action.Version
	if version == "" {
		version = "0.0.1"
	}
	return &activation.Record{
		ID: asked.ID, Namespace: asked.User.Namespace.Name, Name: asked.Action.Name,
		Version: version, Subject: asked.User.Subject,
		Kind: message.UnknownKind, Path: asked.Action.String(), Start: now, End: now,
		Response: activation.Failed(status, why),
	}
}

// store keeps the record where its namespace wants that.
func (b *Bus) store(ctx context.Context, asked *message.Activation, record *activation.Record) {
	if !asked.User.Stores() {
		return
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*patience)
	defer cancel()
	if err := b.db.PutActivation(limit, message.NewRecord(record, asked), time.Now()); err != nil {
		b.counts.records.Add(1)
		b.cfg.Log.Error("the record of an activation is lost", "activation", asked.ID,
			"namespace", record.Namespace, "error", err)
	}
}
