package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/node-agent/api"
)

// Knative measures what Knative's API costs where a sandbox costs nothing.
type Knative struct {
	// from the request that creates a service until the watch says that it is ready, ms; the first
	// services, and the last of Services
	First    bench.Quantiles `json:"create_to_ready_first_ms"`
	Last     bench.Quantiles `json:"create_to_ready_last_ms"`
	Services int             `json:"services"`
	// a service's first request, which starts its sandbox, and its second, one at a time, ms
	Cold  bench.Quantiles `json:"cold_ms"`
	Warm  bench.Quantiles `json:"warm_ms"`
	Added bench.Quantiles `json:"added_ms"` // by service
	// services that get their first request at once
	Burst         int             `json:"burst"`
	BurstCold     bench.Quantiles `json:"burst_cold_ms"`
	BurstAnswered int             `json:"burst_answered"`
	Sandboxes     int             `json:"sandboxes"` // of all services that got a request
	// of the process, without a service and with all of them
	EmptyMiB float64  `json:"mib_without_services"`
	FullMiB  float64  `json:"mib_with_services"`
	Watches  *Watches `json:"watches"`
	Failed   int      `json:"failed"`
	Example  string   `json:"example,omitempty"`
}

// Err says which requests failed, and what watchers did not get.
func (k *Knative) Err() (err error) {
	if k.Failed > 0 {
		err = fmt.Errorf("%d requests failed: %s", k.Failed, k.Example)
	}
	return errors.Join(err, k.Watches.Err())
}

const (
	services = 1000
	oneByOne = 200 // first requests one at a time
	together = 100
)

// Knative measures it all on one server.
func (b *Bench) Knative(ctx context.Context) (*Knative, error) {
	s, err := b.up(ctx, "--memory", "1000000", "--changes-per-minute", unlimited)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	k := &Knative{Services: services, Burst: together}
	empty, err := residentOf(s.cmd)
	if err != nil {
		return nil, err
	}
	times := make([]float64, services)
	for i := range times {
		if times[i], err = s.createService(ctx, fmt.Sprintf("s-%d", i)); err != nil {
			return nil, err
		}
		if (i+1)%100 == 0 {
			fmt.Fprintf(b.Out, "knative  %d services\n", i+1)
		}
	}
	full, err := residentOf(s.cmd)
	if err != nil {
		return nil, err
	}
	k.EmptyMiB, k.FullMiB = empty.MiB, full.MiB
	k.First, k.Last = bench.QuantilesOf(times[:100]), bench.QuantilesOf(times[services-100:])
	var cold, warm, added []float64
	for i := range oneByOne {
		first, second := s.ask(ctx, k, i), s.ask(ctx, k, i)
		cold, warm, added = append(cold, first), append(warm, second), append(added, first-second)
	}
	k.Cold, k.Warm, k.Added = bench.QuantilesOf(cold), bench.QuantilesOf(warm),
		bench.QuantilesOf(added)
	failed := k.Failed
	burst := make([]float64, together)
	var all sync.WaitGroup
	for i := range burst {
		all.Go(func() { burst[i] = s.ask(ctx, k, oneByOne+i) })
	}
	all.Wait()
	k.BurstCold, k.BurstAnswered = bench.QuantilesOf(burst), together-(k.Failed-failed)
	node, hangUp, err := api.Dial(filepath.Join(s.runDir(), "node.sock"), nil)
	if err != nil {
		return nil, err
	}
	defer hangUp()
	status, err := node.Status(ctx, &api.StatusRequest{})
	if err != nil {
		return nil, err
	}
	k.Sandboxes = len(status.GetSandboxes())
	k.Watches, err = s.watches(ctx)
	return k, err
}

// createService creates a service whose sandboxes start with its first request, and returns after
// how many ms the watch says that it is ready.
func (s *server) createService(ctx context.Context, name string) (float64, error) {
	begun := time.Now()
	version, err := s.create(ctx, name)
	if err != nil {
		return 0, err
	}
	watching, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	watch, err := s.send(watching, http.MethodGet, servicesOf+"?watch=true&fieldSelector="+
		"metadata.name%3D"+name+"&resourceVersion="+version, "", "")
	if err != nil {
		return 0, err
	}
	defer watch.Body.Close()
	lines := bufio.NewScanner(watch.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if bytes.Contains(lines.Bytes(), []byte(`"type":"Ready","status":"True"`)) {
			return float64(time.Since(begun)) / float64(time.Millisecond), nil
		}
	}
	return 0, fmt.Errorf("service %s never became ready: %w", name, lines.Err())
}

var asking sync.Mutex // over what ask counts

// ask sends a service a request on a connection of its own, and returns how many ms it took.
func (s *server) ask(ctx context.Context, k *Knative, service int) float64 {
	host := fmt.Sprintf("s-%d.guest.localhost", service)
	begun := time.Now()
	err := s.askOf(ctx, host)
	took := float64(time.Since(begun)) / float64(time.Millisecond)
	if err != nil {
		asking.Lock()
		defer asking.Unlock()
		k.Failed++
		k.Example = err.Error()
	}
	return took
}

func (s *server) askOf(ctx context.Context, host string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.address)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
	if err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s is answered %s: %s", host, answer.Status, text)
	}
	return err
}

// Print shows the result to a person.
func (k *Knative) Print(w io.Writer) {
	for _, row := range []struct {
		what string
		of   bench.Quantiles
	}{
		{"create → ready, first 100", k.First},
		{fmt.Sprintf("create → ready, last 100 of %d", k.Services), k.Last},
		{"first request", k.Cold}, {"second request", k.Warm}, {"added by the start", k.Added},
		{fmt.Sprintf("first requests, %d at once", k.Burst), k.BurstCold},
	} {
		fmt.Fprintf(w, "%34s  p50 %8.2f ms  p90 %8.2f ms  p99 %8.2f ms\n",
			row.what, row.of.Median, row.of.P90, row.of.P99)
	}
	fmt.Fprintf(w, "%34s  %.0f without, %.0f with %d\n", "MiB, services", k.EmptyMiB, k.FullMiB,
		k.Services)
	fmt.Fprintf(w, "%34s  %.0f a second, %.0f beside a slow one, of %.0f changes; %d lost, "+
		"%d reordered\n", fmt.Sprintf("events of %d watchers", watchers), k.Watches.Events.Median,
		k.Watches.BesideSlow.Median, k.Watches.Updates.Median, k.Watches.Lost, k.Watches.Reordered)
	fmt.Fprintf(w, "%34s  %d events, %d lost or reordered, 410: %t; %d of a new list stale, "+
		"goes on: %t\n", "the slow one then", k.Watches.Slow.Events, k.Watches.Slow.Lost,
		k.Watches.Slow.Gone, k.Watches.Slow.Stale, k.Watches.Slow.Goes)
	fmt.Fprintf(w, "%d/%d answered at once, %d sandboxes, %d failed %s\n",
		k.BurstAnswered, k.Burst, k.Sandboxes, k.Failed, k.Example)
}
