// Package bus joins an OpenWhisk cluster as one of its invokers, on the classic path: activations
// come through Kafka, acknowledgements go back through Kafka, actions and records are in the
// cluster's CouchDB.
//
//	invokerN ─▶ commit ─▶ decode ─▶ fetch the action ─▶ run ─▶ Result ─▶ Completion ─▶ record
//
// An activation runs at most once. The offset of its message is committed before it runs, and a
// message whose commit failed is dropped here and comes again. From then on its controller is owed
// an acknowledgement, whatever goes wrong. The bus takes no more from the topic than it has room
// for. The rest waits in Kafka, where another invoker of this id would find it.
//
// feed.go takes messages, handle.go makes activations of them, and ack.go reports their outcome.
// actions.go remembers code, onpool.go runs an activation in a sandbox, and collect.go counts.
package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/couch"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/message"
)

// Config says which cluster is joined, and as what.
type Config struct {
	Brokers []string
	TLS     *tls.Config // by which brokers are spoken to; nil: in the clear
	Prefix  string      // of every topic: whisk.kafka.topics.prefix
	Invoker message.Invoker
	Slots   int  // how many activations may be under way, at first
	Room    Room // asked before each ping; nil: it stays as it is
	Events  bool // whether the topic events is told how much each activation took
	Log     *slog.Logger
}

// A Room returns how many activations may be under way now, and how much memory the controllers
// should count for that.
type Room func(ctx context.Context) (slots, memoryMB int, err error)

// A Runner runs one activation and tells how that went, whatever happened. It ends when ctx does.
type Runner interface {
	Run(ctx context.Context, r Request) *activation.Record
}

// A Request is an activation that is to be run.
type Request struct {
	Asked  *message.Activation
	Action *couch.Action
}

// A Bus is a member of a cluster.
type Bus struct {
	cfg      Config
	db       *couch.Client
	runner   Runner
	actions  *actions
	consumer *kgo.Client
	producer *kgo.Client
	watcher  *kgo.Client // of cacheInvalidation
	places   *places
	stores   chan struct{} // records on their way to the database
	running  sync.WaitGroup
	blocked  atomic.Pointer[map[string]bool] // namespaces
	usurped  chan struct{}                   // closed when another process took this invoker's id
	once     sync.Once
	counts   counts
}

// ErrUsurped is the error of Serve when another process joined with the same invoker id.
var ErrUsurped = errors.New(
	"another process joined the cluster as this invoker; give each its own id")

const (
	// maxStores bounds the records that are finished and not yet kept.
	maxStores = 256
	// patience is the time that the cluster gets to answer when it is joined or left.
	patience = 30 * time.Second
	// drain is the time that activations under way get to end by themselves when the invoker
	// leaves.
	drain = 15 * time.Second
)

// Join connects to the cluster, and makes sure that this invoker's topic is there. It takes nothing
// from the topic before Serve.
func Join(ctx context.Context, cfg Config, db *couch.Client, runner Runner) (*Bus, error) {
	b := &Bus{
		cfg: cfg, db: db, runner: runner, actions: newActions(db),
		places: newPlaces(cfg.Slots), stores: make(chan struct{}, maxStores),
		usurped: make(chan struct{}),
	}
	b.counts.offer(cfg.Slots, int(cfg.Invoker.UserMemory))
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := db.Check(ctx); err != nil {
		return nil, err
	}
	if err := b.refreshBlocked(ctx); err != nil {
		return nil, err
	}
	if err := b.connect(); err != nil {
		b.close()
		return nil, err
	}
	if err := b.ensureTopic(ctx); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// maxMessage is the largest message that the cluster's topics take: a payload of 1 MB and its
// envelope.
const maxMessage = 1<<20 + 6068

func (b *Bus) connect() (err error) {
	base := []kgo.Opt{kgo.SeedBrokers(b.cfg.Brokers...), kgo.ClientID(b.cfg.Invoker.String())}
	if b.cfg.TLS != nil {
		base = append(base, kgo.DialTLSConfig(b.cfg.TLS))
	}
	base = slices.Clip(base) // each client appends its own
	// The topics' brokers judge which message is too large. An acknowledgement that comes twice
	// does no harm, so producing is not idempotent. That keeps it within the rights that a cluster
	// gives its invokers, and lets it end in time.
	if b.producer, err = kgo.NewClient(append(base, kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ProducerBatchMaxBytes(8<<20), kgo.DisableIdempotentWrite(),
		kgo.RecordDeliveryTimeout(patience))...); err != nil {
		return err
	}
	// The group's member has a fixed name: a restarted invoker takes its predecessor's place at
	// once, and one that shares an id with another is told so. With the range balancer each
	// rebalance begins anew at the committed offset, so that dropped messages come again.
	if b.consumer, err = kgo.NewClient(append(base,
		kgo.ConsumeTopics(b.topic(b.cfg.Invoker.String())),
		kgo.ConsumerGroup(b.topic(b.cfg.Invoker.String())),
		kgo.InstanceID(b.cfg.Invoker.String()), kgo.SessionTimeout(30*time.Second),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.Balancers(kgo.RangeBalancer()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxBytes(16<<20),
		kgo.WithHooks(groupHook{b}))...); err != nil {
		return err
	}
	b.watcher, err = kgo.NewClient(append(base, kgo.ConsumeTopics(b.topic("cacheInvalidation")),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()))...)
	return err
}

func (b *Bus) topic(name string) string { return b.cfg.Prefix + name }

// ensureTopic makes this invoker's topic as the cluster's own invoker makes it: of one partition,
// which keeps activations in order.
func (b *Bus) ensureTopic(ctx context.Context) error {
	setting := func(v string) *string { return &v }
	topic := b.topic(b.cfg.Invoker.String())
	made, err := kadm.NewClient(b.producer).CreateTopic(ctx, 1, -1, map[string]*string{
		"segment.bytes": setting("536870912"), "retention.bytes": setting("1073741824"),
		"retention.ms":      setting("172800000"),
		"max.message.bytes": setting(fmt.Sprint(maxMessage)),
	}, topic)
	if err == nil {
		err = made.Err
	}
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("kafka %v: topic %s: %w", b.cfg.Brokers, topic, err)
	}
	return nil
}

// Serve pings the controllers and runs the activations that they send until ctx ends. Then it
// finishes those under way. A Bus serves once.
func (b *Bus) Serve(ctx context.Context) error {
	defer b.close()
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	var background sync.WaitGroup
	for _, do := range []func(context.Context){b.ping, b.watch, b.watchBlocked, b.watchLag} {
		background.Go(func() { do(ctx) })
	}
	stop := make(chan struct{})
	background.Go(func() {
		select {
		case <-b.usurped:
			b.consumer.CloseAllowingRebalance() // before it joins again, and takes the id back
			leave()
		case <-stop:
		}
	})
	run, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	b.consume(ctx, run)
	leave()
	timer := time.AfterFunc(drain, end)
	b.running.Wait()
	timer.Stop()
	close(stop)
	background.Wait()
	select {
	case <-b.usurped:
		return fmt.Errorf("%s: %w", b.cfg.Invoker, ErrUsurped)
	default:
		return nil
	}
}

func (b *Bus) close() {
	for _, client := range []*kgo.Client{b.consumer, b.watcher, b.producer} {
		if client != nil {
			client.CloseAllowingRebalance()
		}
	}
}

// A groupHook hears why the consumer fell out of its group.
type groupHook struct{ bus *Bus }

func (h groupHook) OnGroupManageError(err error) { h.bus.noteUsurped(err) }

// noteUsurped reports whether err means that another process has this invoker's id.
func (b *Bus) noteUsurped(err error) bool {
	if errors.Is(err, kerr.FencedInstanceID) {
		b.once.Do(func() { close(b.usurped) })
		return true
	}
	return false
}

// ping tells the controllers each second that this invoker takes activations, and at the end that
// it does not any more.
func (b *Bus) ping(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	silent, offer, slots := false, b.cfg.Invoker, b.cfg.Slots
	send := func(enabled bool) {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if b.cfg.Room != nil && enabled {
			now, memory, err := b.cfg.Room(limit)
			switch {
			case err != nil:
				b.cfg.Log.Error("what the nodes can hold is as it was told last", "error", err)
			case now != slots:
				b.cfg.Log.Info("the room of the nodes has changed", "slots", now, "memory", memory)
				b.places.set(now)
				slots, offer.UserMemory = now, message.Megabytes(memory)
				b.counts.offer(now, memory)
			}
		}
		err := b.send(limit, "health", message.Ping{Name: offer, Enabled: enabled && slots > 0})
		if err != nil && !silent {
			b.cfg.Log.Error("the controllers cannot be pinged", "error", err)
		}
		silent = err != nil
	}
	for {
		send(true)
		select {
		case <-tick.C:
		case <-ctx.Done():
			select {
			case <-b.usurped: // the other one is there
			default:
				send(false)
			}
			return
		}
	}
}

// watch drops code from memory when its action changed. Nothing depends on it: code is remembered
// by revision.
func (b *Bus) watch(ctx context.Context) {
	for {
		fetches := b.watcher.PollFetches(ctx)
		if ctx.Err() != nil || fetches.IsClientClosed() {
			return
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if changed, err := message.DecodeInvalidation(r.Value); err == nil {
				b.actions.forget(changed.Key.Main)
			}
		})
	}
}

// watchBlocked asks from time to time whose activations are not to be run.
func (b *Bus) watchBlocked(ctx context.Context) {
	tick := time.NewTicker(5 * time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := b.refreshBlocked(ctx); err != nil {
				b.cfg.Log.Error("the list of blocked namespaces is as old as its last answer",
					"error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (b *Bus) refreshBlocked(ctx context.Context) error {
	blocked, err := b.db.Blocked(ctx)
	if err == nil {
		b.blocked.Store(&blocked)
	}
	return err
}
