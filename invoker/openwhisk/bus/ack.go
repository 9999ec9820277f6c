package bus

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/message"
)

// An order says which acknowledgements an activation gets.
type order int

const (
	split    order = iota // its logs were collected: Result to a waiting caller, then Completion
	whole                 // it has no logs: Combined to a waiting caller, else Completion
	combined              // it did not run: Combined
)

// acks returns the acknowledgements in the order they are to be sent. A caller that does not wait
// gets no record.
func acks(asked *message.Activation, record message.Record, by message.Invoker,
	o order) []message.Ack {
	t := asked.Transaction
	switch {
	case o == combined && !asked.Blocking:
		return []message.Ack{message.Combined(t, record, by).Shrunk()}
	case !asked.Blocking:
		return []message.Ack{message.Completion(t, record, by)}
	case o == split:
		return []message.Ack{message.Result(t, record), message.Completion(t, record, by)}
	default:
		return []message.Ack{message.Combined(t, record, by)}
	}
}

// acknowledge sends the acknowledgements that the controller is owed, one after the other: the
// second leaves when the first has arrived.
func (b *Bus) acknowledge(ctx context.Context, asked *message.Activation, record *activation.Record,
	o order) {
	ctx = context.WithoutCancel(ctx)
	for _, ack := range acks(asked, message.NewRecord(record, asked), b.cfg.Invoker, o) {
		topic := "completed" + asked.Controller.Name
		err := b.send(ctx, topic, ack)
		if errors.Is(err, kerr.MessageTooLarge) {
			err = b.send(ctx, topic, ack.Shrunk())
		}
		if err != nil {
			b.counts.acks.Add(1)
			b.cfg.Log.Error(
				"the controller cannot be told of an activation; it will take it for lost",
				"topic", b.topic(topic), "activation", asked.ID, "error", err)
		}
	}
	if b.cfg.Events {
		if err := b.send(ctx, "events", message.NewEvent(record, asked,
			b.cfg.Invoker, time.Now())); err != nil {
			b.cfg.Log.Error("the event of an activation is lost", "activation", asked.ID,
				"error", err)
		}
	}
}

// send returns when the message is in the topic.
func (b *Bus) send(ctx context.Context, topic string, m any) error {
	return b.producer.ProduceSync(ctx, &kgo.Record{Topic: b.topic(topic),
		Value: message.Encode(m)}).FirstErr()
}
