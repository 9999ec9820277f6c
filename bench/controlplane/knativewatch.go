package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fastiov/fastiov/bench"
)

// Watches measures how changes of services reach those who watch all of them.
type Watches struct {
	Updates bench.Quantiles `json:"updates_per_second"`
	// that all watchers together read, in a second; also beside one that reads nothing
	Events     bench.Quantiles `json:"events_per_second"`
	BesideSlow bench.Quantiles `json:"events_per_second_beside_a_slow_watcher"`
	Lost       int             `json:"lost"` // changes that a watcher did not get
	Reordered  int             `json:"reordered"`
	Slow       Slow            `json:"slow_watcher"`

	last  map[int]string // the newest change of each service
	order []uint64       // the events that one watcher read beside the slow one, in the first round
}

// Slow is the watcher that has read nothing and now reads what there is for it.
type Slow struct {
	Events int  `json:"events"`              // until it was told that later ones are not kept
	Lost   int  `json:"lost_or_reordered"`   // of those, by what another watcher read
	Gone   bool `json:"told_410"`            // then, and if it asks again
	Stale  int  `json:"stale_in_a_new_list"` // services that are not as they were changed last
	Goes   bool `json:"goes_on_from_there"`  // with the next change
}

// Err says what a watcher did not get that it should have.
func (w *Watches) Err() error {
	var failed []error
	note := func(bad bool, format string, args ...any) {
		if bad {
			failed = append(failed, fmt.Errorf(format, args...))
		}
	}
	note(w.Lost > 0, "watchers lost %d changes", w.Lost)
	note(w.Reordered > 0, "watchers read %d events out of order", w.Reordered)
	note(w.Slow.Events == 0, "the slow watcher read nothing")
	note(w.Slow.Lost > 0, "the slow watcher read %d events that others did not read in that place",
		w.Slow.Lost)
	note(!w.Slow.Gone, "the slow watcher was not told 410")
	note(w.Slow.Stale > 0, "%d services are stale in the slow watcher's new list", w.Slow.Stale)
	note(!w.Slow.Goes, "the slow watcher does not go on from its new list")
	return errors.Join(failed...)
}

const (
	watchers     = 10
	patchers     = 8
	watchRounds  = 3
	watchesRound = 4 * time.Second
)

// watches has services changed while they are watched, some rounds without and some with a watcher
// that reads nothing.
func (s *server) watches(ctx context.Context) (*Watches, error) {
	w := &Watches{last: map[int]string{}}
	var slow net.Conn
	var updates, alone, beside []float64
	for round := range 2 * watchRounds {
		if round == watchRounds {
			var err error
			if slow, err = s.watchSlowly(ctx); err != nil {
				return nil, err
			}
			defer slow.Close()
		}
		updated, events, err := s.watchRound(ctx, w, round, watchesRound)
		if err != nil {
			return nil, err
		}
		updates = append(updates, updated)
		if round < watchRounds {
			alone = append(alone, events)
		} else {
			beside = append(beside, events)
		}
	}
	w.Updates, w.Events = bench.QuantilesOf(updates), bench.QuantilesOf(alone)
	w.BesideSlow = bench.QuantilesOf(beside)
	if err := s.outrun(ctx); err != nil {
		return nil, err
	}
	return w, s.catchUp(ctx, w, slow)
}

// watchSlowly returns a watch of all services, of which nothing is read.
func (s *server) watchSlowly(ctx context.Context) (net.Conn, error) {
	from, err := s.revision(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.address)
	if err != nil {
		return nil, err
	}
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	_ = conn.SetDeadline(time.Now().Add(5 * time.Minute))
	_, err = fmt.Fprintf(conn, "GET %s?watch=true&resourceVersion=%s HTTP/1.1\r\nHost: %s\r\n"+
		"Authorization: Bearer %s\r\n\r\n", servicesOf, from, s.address, s.key)
	return conn, err
}

// gone answers a watch from a revision that is too old.
var gone = []byte(`"code":410`)

// outrun has a service changed, in large, until no event is kept that has been until now.
func (s *server) outrun(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	from, err := s.revision(ctx)
	if err != nil {
		return err
	}
	for {
		for range 20 {
			body := fmt.Sprintf(`{"metadata":{"annotations":{"large":%q}}}`,
				fmt.Sprint(time.Now().UnixNano())+strings.Repeat("x", 200<<10))
			if err := s.patch(ctx, "s-2", body); err != nil {
				return err
			}
		}
		watch, err := s.send(ctx, http.MethodGet,
			servicesOf+"?watch=true&timeoutSeconds=1&resourceVersion="+from, "", "")
		if err != nil {
			return err
		}
		first, err := bufio.NewReader(watch.Body).ReadSlice('\n')
		watch.Body.Close()
		if bytes.Contains(first, gone) {
			return s.patch(ctx, "s-2", `{"metadata":{"annotations":{"large":null}}}`)
		} else if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// catchUp has the slow watcher do what a client does that was too slow: it reads what it is sent,
// asks for more, is told 410, lists, and watches from there.
func (s *server) catchUp(ctx context.Context, w *Watches, slow net.Conn) error {
	answer, err := http.ReadResponse(bufio.NewReader(slow), nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	var got []uint64
	last := ""
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && !bytes.Contains(lines.Bytes(), gone) {
		at := numberAfter(lines.Bytes(), versioned)
		if at == 0 {
			return fmt.Errorf("the slow watcher reads %.200s", lines.Bytes())
		}
		last = strconv.FormatUint(at, 10)
		got = append(got, at)
	}
	w.Slow.Events = len(got)
	for len(got) > 0 && len(w.order) > 0 && got[0] < w.order[0] {
		got = got[1:]
	}
	for i := range min(len(got), len(w.order)) {
		if got[i] != w.order[i] {
			w.Slow.Lost++
		}
	}
	again, err := s.send(ctx, http.MethodGet,
		servicesOf+"?watch=true&timeoutSeconds=10&resourceVersion="+last, "", "")
	if err != nil {
		return err
	}
	told, err := io.ReadAll(again.Body)
	again.Body.Close()
	w.Slow.Gone = bytes.Contains(told, gone)
	if err != nil {
		return err
	}
	return s.listAgain(ctx, w)
}

func (s *server) listAgain(ctx context.Context, w *Watches) error {
	answer, err := s.send(ctx, http.MethodGet, servicesOf, "", "")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []struct {
			Metadata struct {
				Name        string
				Annotations struct{ Patched string }
			}
		}
	}
	if err := json.NewDecoder(answer.Body).Decode(&list); err != nil {
		return err
	}
	is := map[string]string{}
	for _, item := range list.Items {
		is[item.Metadata.Name] = item.Metadata.Annotations.Patched
	}
	for service, change := range w.last {
		if is[fmt.Sprintf("s-%d", service)] != change {
			w.Slow.Stale++
		}
	}
	watch, err := s.send(ctx, http.MethodGet, servicesOf+
		"?watch=true&timeoutSeconds=10&resourceVersion="+list.Metadata.ResourceVersion, "", "")
	if err != nil {
		return err
	}
	defer watch.Body.Close()
	if err := s.patch(ctx, "s-1", `{"metadata":{"annotations":{"patched":"0"}}}`); err != nil {
		return err
	}
	lines := bufio.NewScanner(watch.Body)
	lines.Buffer(nil, 1<<20)
	for !w.Slow.Goes && lines.Scan() {
		w.Slow.Goes = bytes.Contains(lines.Bytes(), []byte(`"patched":"0"`))
	}
	return lines.Err()
}

// watchRound has services changed for so long while others watch, and returns how many changes
// there were in a second, and how many events were read.
func (k *kube) watchRound(ctx context.Context, w *Watches, round int, long time.Duration) (
	updates, events float64, err error,
) {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	from, err := k.revision(ctx)
	if err != nil {
		return 0, 0, err
	}
	first := uint64(round+1) * 1_000_000 // the round's changes have numbers from here on
	var made, read, behind atomic.Int64
	var over atomic.Bool // no more changes are made
	seen := make([]map[uint64]bool, watchers)
	var watching, patching sync.WaitGroup
	for i := range watchers {
		seen[i] = map[uint64]bool{}
		watch, err := k.send(ctx, http.MethodGet,
			servicesOf+"?watch=true&resourceVersion="+from, "", "")
		if err != nil {
			return 0, 0, err
		}
		watching.Go(func() {
			defer watch.Body.Close()
			last := uint64(0)
			lines := bufio.NewScanner(watch.Body)
			lines.Buffer(nil, 1<<20)
			for lines.Scan() {
				read.Add(1)
				now := numberAfter(lines.Bytes(), versioned)
				if now <= last {
					behind.Add(1)
				}
				last = now
				if i == 0 && round == watchRounds {
					w.order = append(w.order, now)
				}
				if change := numberAfter(lines.Bytes(), patched); change >= first {
					seen[i][change] = true
				}
				if over.Load() && len(seen[i]) >= int(made.Load()) {
					return
				}
			}
		})
	}
	var mu sync.Mutex
	change := func(n int) {
		number := strconv.FormatUint(first+uint64(n), 10)
		why := k.patch(ctx, fmt.Sprintf("s-%d", n%services),
			fmt.Sprintf(`{"metadata":{"annotations":{"patched":%q}}}`, number))
		mu.Lock()
		defer mu.Unlock()
		if w.last[n%services] = number; why != nil {
			err = why
		}
	}
	begun := time.Now()
	for p := range patchers {
		patching.Go(func() {
			for n := p; time.Since(begun) < long; n += patchers {
				change(n)
				made.Add(1)
			}
		})
	}
	patching.Wait()
	took := time.Since(begun).Seconds()
	updates, events = float64(made.Load())/took, float64(read.Load())/took
	if err != nil {
		return 0, 0, err
	}
	made.Add(1) // one more, for watchers that have read all others
	over.Store(true)
	change(999_999)
	watching.Wait()
	for _, changes := range seen {
		w.Lost += int(made.Load()) - len(changes)
	}
	w.Reordered += int(behind.Load())
	return updates, events, err
}
