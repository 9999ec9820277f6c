package bus

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
)

// counted waits until Prometheus would find that value.
func (c *cluster) counted(metric string, want float64) {
	c.t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c.bus)
	c.look(fmt.Sprint(metric, " ", want), func() bool {
		families, err := registry.Gather()
		if err != nil {
			c.t.Fatal(err)
		}
		for _, family := range families {
			if family.GetName() == metric {
				is := family.GetMetric()[0] // a gauge, or a counter
				return is.GetGauge().GetValue()+is.GetCounter().GetValue() == want
			}
		}
		return false
	})
}

// If there is no more room, one call is under way, the others wait in Kafka, and the metrics say
// so. When there is more room, the metrics follow.
func TestWhatIsUnderWayAndWhatWaitsIsCounted(t *testing.T) {
	c := newCluster(t, kafkaInProcess(t)...)
	meet := c.action("meet", "meet 2", 10)
	var slots atomic.Int64
	slots.Store(1)
	cfg := c.config(4)
	cfg.Room = func(context.Context) (int, int, error) {
		n := int(slots.Load())
		return n, 256 * n, nil
	}
	c.invokeAs(cfg)
	c.counted("fastiov_bus_offered_slots", 1)
	c.counted("fastiov_bus_offered_memory_bytes", 256<<20)
	var ids []string
	for range 3 {
		ids = append(ids, c.ask("meet", meet, nil))
	}
	c.counted("fastiov_bus_running_activations", 1)
	c.counted("fastiov_bus_waiting_messages", 2)

	slots.Store(2)
	for _, id := range ids {
		c.acked(id, 1)
	}
	c.counted("fastiov_bus_offered_slots", 2)
	c.counted("fastiov_bus_offered_memory_bytes", 512<<20)
	c.counted("fastiov_bus_running_activations", 0)
	c.counted("fastiov_bus_waiting_messages", 0)
	c.counted("fastiov_bus_lost_acks_total", 0)
	c.counted("fastiov_bus_lost_records_total", 0)
}

func TestWhatIsLostIsCounted(t *testing.T) {
	c := newCluster(t, kafkaInProcess(t)...)
	echo := c.action("echo", "echo", 10)
	c.invoke(1)
	c.db.FailWrites(400)
	id := c.ask("echo", echo, nil)
	c.acked(id, 1)
	c.counted("fastiov_bus_lost_records_total", 1)

	one := "1"
	if _, err := kadm.NewClient(c.kafka).AlterTopicConfigs(t.Context(),
		[]kadm.AlterConfig{{Name: "max.message.bytes", Value: &one}}, prefix+
			"completed0"); err != nil {
		t.Fatal(err)
	}
	id = c.ask("echo", echo, blocking) // the controller is told of it twice: Result, Completion
	c.stored(id)
	c.counted("fastiov_bus_lost_acks_total", 2)
	c.counted("fastiov_bus_running_activations", 0)
	c.counted("fastiov_bus_lost_records_total", 1)
}
