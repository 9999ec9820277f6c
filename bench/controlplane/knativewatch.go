package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
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
	w := &Watches{}
	var updates, alone, beside []float64
	for round := range 2 * watchRounds {
		if round == watchRounds {
			slow, err := s.watchSlowly(ctx)
			if err != nil {
				return nil, err
			}
			defer slow.Close()
		}
		updated, events, err := s.watchRound(ctx, w, round)
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
	return w, nil
}

// watchSlowly returns a watch of all services, of which nothing is read.
func (s *server) watchSlowly(ctx context.Context) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.address)
	if err != nil {
		return nil, err
	}
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	_ = conn.SetDeadline(time.Now().Add(5 * time.Minute))
	_, err = fmt.Fprintf(conn, "GET %s?watch=true HTTP/1.1\r\nHost: x\r\n"+
		"Authorization: Bearer %s\r\n\r\n", servicesOf, s.key)
	return conn, err
}

var (
	numbered = regexp.MustCompile(`"resourceVersion":"(\d+)"`)
	patched  = regexp.MustCompile(`"patched":"(\d+)"`)
)

// watchRound returns how many changes there were in a second, and how many events were read.
func (s *server) watchRound(ctx context.Context, w *Watches, round int) (
	updates, events float64, err error,
) {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	var made, read, behind atomic.Int64
	var watching, patching sync.WaitGroup
	var mu sync.Mutex
	failed := func(why error) {
		mu.Lock()
		defer mu.Unlock()
		err = why
	}
	var over atomic.Bool // no more changes are made
	seen := make([]map[string]bool, watchers)
	list, err := s.kubernetes(ctx, http.MethodGet, servicesOf+"?limit=1", nil)
	if err != nil {
		return 0, 0, err
	}
	first, err := io.ReadAll(list.Body)
	list.Body.Close()
	from := numbered.FindSubmatch(first)
	if err != nil || from == nil {
		return 0, 0, fmt.Errorf("a list is %.200s, %w", first, err)
	}
	for i := range watchers {
		seen[i] = map[string]bool{}
		watch, err := s.kubernetes(ctx, http.MethodGet,
			servicesOf+"?watch=true&resourceVersion="+string(from[1]), nil)
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
				if is := numbered.FindSubmatch(lines.Bytes()); is != nil {
					now, _ := strconv.ParseUint(string(is[1]), 10, 64)
					if now <= last {
						behind.Add(1)
					}
					last = now
				}
				if is := patched.FindSubmatch(lines.Bytes()); is != nil {
					seen[i][string(is[1])] = true
				}
				if over.Load() && len(seen[i]) >= int(made.Load()) {
					return
				}
			}
		})
	}
	begun := time.Now()
	for p := range patchers {
		patching.Go(func() {
			for n := p; time.Since(begun) < watchesRound; n += patchers {
				number := int64(round+1)*1_000_000 + int64(n)
				body := fmt.Sprintf(`{"metadata":{"annotations":{"patched":"%d"}}}`, number)
				if why := s.patch(ctx, fmt.Sprintf("s-%d", n%services), body); why != nil {
					failed(why)
					return
				}
				made.Add(1)
			}
		})
	}
	patching.Wait()
	took := time.Since(begun).Seconds()
	updates, events = float64(made.Load())/took, float64(read.Load())/took
	over.Store(true)
	if err == nil { // one more, for watchers that have read all others
		made.Add(1)
		err = s.patch(ctx, "s-0",
			fmt.Sprintf(`{"metadata":{"annotations":{"patched":"%d"}}}`, round))
	}
	watching.Wait()
	for _, changes := range seen {
		w.Lost += int(made.Load()) - len(changes)
	}
	w.Reordered += int(behind.Load())
	return updates, events, err
}

func (s *server) patch(ctx context.Context, service, body string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPatch,
		"http://"+s.address+servicesOf+"/"+service, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+s.key)
	r.Header.Set("Content-Type", "application/merge-patch+json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("a change of %s is answered %s: %.200s", service, answer.Status, text)
	}
	return err
}
