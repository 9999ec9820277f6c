package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// consume takes messages as long as ctx lives and there is room; each is handled by itself, under
// run.
func (b *Bus) consume(ctx, run context.Context) {
	for {
		room, fewer := b.places.take(ctx)
		if room == 0 {
			return
		}
		records, err := b.poll(ctx, room, fewer)
		b.places.give(room - len(records))
		for _, r := range records {
			b.running.Go(func() { b.handle(run, r.Value) })
		}
		if err != nil {
			if b.noteUsurped(err) || ctx.Err() != nil || errors.Is(err, kgo.ErrClientClosed) {
				return
			}
			b.cfg.Log.Error("taking activations failed; trying again",
				"topic", b.topic(b.cfg.Invoker.String()), "error", err)
			wait(ctx, time.Second)
		}
	}
}

// poll returns messages whose offsets are committed: from here on they belong to this process
// alone, and will never be delivered again. If the commit fails because the group went on without
// this member, they will be delivered to the next member, so poll does not return them. It also
// returns none if less room was left while it waited.
func (b *Bus) poll(ctx context.Context, most int, fewer <-chan struct{}) ([]*kgo.Record, error) {
	fetches := b.fetch(ctx, most, fewer)
	defer b.consumer.AllowRebalance()
	records := fetches.Records()
	if len(records) == 0 {
		if errors.Is(fetches.Err(), context.Canceled) && ctx.Err() == nil {
			return nil, nil
		}
		return nil, fetches.Err()
	}
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		// A shutdown does not interrupt a commit: messages that it might have committed would
		// vanish.
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		err := b.consumer.CommitRecords(limit, records...)
		cancel()
		switch {
		case err == nil:
			return records, nil
		case outOfGroup(err) || ctx.Err() != nil:
			return nil, fmt.Errorf("%d messages are left for whoever is the invoker now: %w",
				len(records), err)
		}
		b.cfg.Log.Error("the offset cannot be committed; trying again", "error", err)
		wait(ctx, pause)
	}
}

// fetch waits for messages, until there is room for fewer. The caller that closed fewer waits for
// fetch to end.
func (b *Bus) fetch(ctx context.Context, most int, fewer <-chan struct{}) kgo.Fetches {
	defer b.places.fetch()() // before fewer is looked at
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	select {
	case <-fewer:
		stop()
	default:
	}
	go func() {
		select {
		case <-fewer:
			stop()
		case <-ctx.Done():
		}
	}()
	return b.consumer.PollRecords(ctx, most)
}

// outOfGroup reports whether a commit failed because this member's session is over.
func outOfGroup(err error) bool {
	for _, over := range []error{
		kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.RebalanceInProgress,
		kerr.FencedInstanceID, kerr.StaleMemberEpoch, kgo.ErrClientClosed,
	} {
		if errors.Is(err, over) {
			return true
		}
	}
	return false
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
