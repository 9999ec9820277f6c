package bus

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
)

// The metrics of a bus that are made when Prometheus asks.
var (
	descAcks = prometheus.NewDesc("fastiov_bus_lost_acks_total",
		"Acknowledgements that did not get into their topic; the controller takes the activation for lost.",
		nil, nil)
	descRecords = prometheus.NewDesc("fastiov_bus_lost_records_total",
		"Activation records that the cluster's CouchDB did not keep.", nil, nil)
	descLag = prometheus.NewDesc("fastiov_bus_waiting_messages",
		"Messages in the invoker's topic that it has not taken, as of its last look.", nil, nil)
	descRunning = prometheus.NewDesc("fastiov_bus_running_activations",
		"Activations that are taken and not yet acknowledged.", nil, nil)
	descSlots = prometheus.NewDesc("fastiov_bus_offered_slots",
		"Activations that may be under way at once.", nil, nil)
	descMemory = prometheus.NewDesc("fastiov_bus_offered_memory_bytes",
		"Memory that is offered to the controllers.", nil, nil)
)

// counts holds the figures that a bus reports to Prometheus.
type counts struct {
	acks, records  atomic.Int64 // that were lost
	lag, running   atomic.Int64
	slots, memoryB atomic.Int64 // the offer to the controllers
}

func (c *counts) offer(slots, memoryMB int) {
	c.slots.Store(int64(slots))
	c.memoryB.Store(int64(memoryMB) << 20)
}

// Describe implements prometheus.Collector.
func (b *Bus) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descAcks, descRecords, descLag, descRunning, descSlots,
		descMemory} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (b *Bus) Collect(ch chan<- prometheus.Metric) {
	tell := func(d *prometheus.Desc, kind prometheus.ValueType, value *atomic.Int64) {
		ch <- prometheus.MustNewConstMetric(d, kind, float64(value.Load()))
	}
	tell(descAcks, prometheus.CounterValue, &b.counts.acks)
	tell(descRecords, prometheus.CounterValue, &b.counts.records)
	tell(descLag, prometheus.GaugeValue, &b.counts.lag)
	tell(descRunning, prometheus.GaugeValue, &b.counts.running)
	tell(descSlots, prometheus.GaugeValue, &b.counts.slots)
	tell(descMemory, prometheus.GaugeValue, &b.counts.memoryB)
}

// watchLag looks every few seconds how many messages wait in the topic.
func (b *Bus) watchLag(ctx context.Context) {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			b.lookAtLag(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// lookAtLag compares the topic's end with the offset that this invoker has committed. If Kafka
// gives no answer, the lag stays as it was; the log says that the pings fail, too.
func (b *Bus) lookAtLag(ctx context.Context) {
	limit, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	topic := b.topic(b.cfg.Invoker.String())
	ends, err := kadm.NewClient(b.producer).ListEndOffsets(limit, topic)
	if err != nil || ends.Error() != nil {
		return
	}
	committed, lag := b.consumer.CommittedOffsets()[topic], int64(0)
	ends.Each(func(end kadm.ListedOffset) {
		lag += max(end.Offset-committed[end.Partition].Offset, 0)
	})
	b.counts.lag.Store(lag)
}
