package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// consume takes messages as long as ctx lives and there is room; each is handled by itself, under run.
func (b *Bus) consume(ctx, run context.Context) {
	for {
		room := b.takeSlots(ctx)
		if room == 0 {
			return
		}
		records, err := b.poll(ctx, room)
		for range room - len(records) {
			<-b.slots
		}
		for _, r := range records {
			b.running.Go(func() { b.handle(run, r.Value) })
		}
		if err != nil {
			if b.noteUsurped(err) || ctx.Err() != nil || errors.Is(err, kgo.ErrClientClosed) {
				return
			}
			b.cfg.Log.Error("taking activations failed; trying again", "topic", b.topic(b.cfg.Invoker.String()), "error", err)
			wait(ctx, time.Second)
		}
	}
}

// takeSlots waits for one free slot, and takes all that are free; none when ctx ends.
func (b *Bus) takeSlots(ctx context.Context) (taken int) {
	select {
	case b.slots <- struct{}{}:
	case <-ctx.Done():
		return 0
	}
	for taken = 1; ; taken++ {
		select {
		case b.slots <- struct{}{}:
		default:
			return taken
		}
	}
}

// poll gives messages whose offsets are committed: from here on they are this process's alone, and will never be delivered again. Where
// the commit fails because the group went on without this member, they will be, to whoever is the member then; so they are not given.
func (b *Bus) poll(ctx context.Context, most int) ([]*kgo.Record, error) {
	fetches := b.consumer.PollRecords(ctx, most)
	defer b.consumer.AllowRebalance()
	records := fetches.Records()
	if len(records) == 0 {
		return nil, fetches.Err()
	}
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		// A shutdown does not interrupt a commit: what it might have committed would vanish.
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		err := b.consumer.CommitRecords(limit, records...)
		cancel()
		switch {
		case err == nil:
			return records, nil
		case outOfGroup(err) || ctx.Err() != nil:
			return nil, fmt.Errorf("%d messages are left for whoever is the invoker now: %w", len(records), err)
		}
		b.cfg.Log.Error("the offset cannot be committed; trying again", "error", err)
		wait(ctx, pause)
	}
}

// outOfGroup tells whether a commit failed because this member's session is over.
func outOfGroup(err error) bool {
	for _, over := range []error{
		kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.RebalanceInProgress, kerr.FencedInstanceID, kerr.StaleMemberEpoch, kgo.ErrClientClosed,
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
