package controlplane

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/invoker/live"
)

// Watched measures what it costs warm calls to be observed. Of two equal servers, one is scraped
// every second and has a reader of its live page; the other has no metrics and no reader.
type Watched struct {
	Watched bench.Quantiles `json:"watched_cpu_us"`
	Alone   bench.Quantiles `json:"alone_cpu_us"`
	// how much more a call of the observed server costs, by pair
	Cost bench.Quantiles `json:"cost_percent"`
	failures
}

// The difference is small beside the effect of the machine's other load on one slice, and that load
// changes from second to second. So there are many short pairs for each round of the other
// comparisons.
const (
	pairs  = 20
	shorts = 10 // per slice
)

func (b *Bench) watched(ctx context.Context) (*Watched, error) {
	both := make([]*contender, 2)
	for i, flags := range [][]string{nil, {"--metrics", ""}} {
		up, calls, err := b.deployed(ctx, 1, 128, flags...)
		if err != nil {
			return nil, err
		}
		defer up.stop()
		both[i] = &contender{
			server: up, load: load{up.address, connections, http.StatusOK, always(calls[0])},
		}
	}
	watched, alone := both[0], both[1]
	stop, err := watched.watch(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	// one server has no metrics, and the other is scraped often enough
	watched.metrics, alone.metrics = "", ""
	for _, c := range both { // warm both up
		if _, err := c.load.during(ctx, b.Slice); err != nil {
			return nil, err
		}
	}
	var cost []float64
	for pair := range pairs * b.Rounds {
		var cpu [2]float64
		for turn := range both {
			i := (pair + turn) % 2 // so that a growing slowness of the machine affects both
			s, err := both[i].measure(ctx, b.Slice/shorts)
			if err != nil {
				return nil, err
			}
			cpu[i] = s.cpu
		}
		cost = append(cost, 100*(cpu[0]/cpu[1]-1))
		if (pair+1)%pairs == 0 {
			b.say("watched  pair %d/%d  %.1f µs a call, alone %.1f", pair+1, pairs*b.Rounds,
				cpu[0], cpu[1])
		}
	}
	w := &Watched{
		Watched: bench.QuantilesOf(watched.cpu), Alone: bench.QuantilesOf(alone.cpu),
		Cost: bench.QuantilesOf(cost),
	}
	w.count(both...)
	return w, nil
}

// watch reads from a server as a Prometheus and a browser do, until stop is called.
func (s *server) watch(ctx context.Context) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	page, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"http://"+s.address+live.Path+"/feed", nil)
	if err != nil {
		cancel()
		return nil, err
	}
	user, secret, _ := strings.Cut(s.key, ":")
	page.SetBasicAuth(user, secret)
	feed, err := http.DefaultClient.Do(page)
	if err != nil {
		cancel()
		return nil, err
	}
	if feed.StatusCode != http.StatusOK {
		feed.Body.Close()
		cancel()
		return nil, fmt.Errorf("the feed of the live page: %s", feed.Status)
	}
	var watching sync.WaitGroup
	metrics := "http://" + s.metrics + "/metrics"
	watching.Go(func() {
		// the feed ends after some minutes, and a browser opens it again
		for err := error(nil); err == nil; feed, err = http.DefaultClient.Do(page) {
			_, _ = io.Copy(io.Discard, feed.Body)
			feed.Body.Close()
		}
	})
	watching.Go(func() {
		for tick := time.Tick(time.Second); ; {
			select {
			case <-tick:
				_, _ = get(metrics)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); watching.Wait() }, nil
}
