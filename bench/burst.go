// Package bench measures the system from the outside, as its users meet it, and prints the results
// as JSON or as a table.
package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/sandbox/sim"
)

// A Burst fires Rounds times N invocations at once, each of a function that nobody has called
// before.
type Burst struct {
	URL    string         // of the invoker, e.g. http://127.0.0.1:3233
	Key    string         // user:password
	Node   api.NodeClient // the node, which is asked what is left after a round; nil: is not asked
	Name   string         // prefix of the functions' names; a number follows
	N      int
	Rounds int
	Kind   string
	Code   string
	Memory int
	// container images of the functions, in turn; none: Kind says what they run in
	Images []string
	With   map[string]string // the functions' parameters
	// Services says that the functions are Knative services, of a program that answers HTTP; Images
	// has it, or else Kind.
	Services bool
	Out      io.Writer // progress
	// what is called before the calls of a round are fired, and after each answer; nil: nothing
	Before func()
	After  func(*Start)
	// what simulates the node's sandboxes, if the result is to be compared with it
	Sim []sim.Step
	// URL of a Prometheus that scrapes the node and is also compared with Sim; empty: none
	Scraped string
}

// A BurstResult is the result of a burst. Times are in milliseconds.
type BurstResult struct {
	Driver    string `json:"driver"` // sim: the stage times are simulated
	N         int    `json:"n"`
	Rounds    int    `json:"rounds"`
	Requested int    `json:"requested"`
	Answered  int    `json:"answered"`
	// answered with the reason why there was no room
	Refused  int            `json:"refused"`
	Leaked   int            `json:"leaked"`
	Leaks    []string       `json:"leaks,omitempty"`
	Errors   map[string]int `json:"errors,omitempty"`
	EndToEnd Quantiles      `json:"end_to_end_ms"`
	// each instant counts once, for the innermost stage
	Stages        map[timeline.Stage]Quantiles `json:"stages"`
	StageCoverage Quantiles                    `json:"stage_coverage"`
	FastIOV       string                       `json:"fastiov"` // the node's FastIOV optimisations
	GuestKernel   string                       `json:"guest_kernel,omitempty"`
	Memory        map[timeline.Moment]Memory   `json:"memory,omitempty"`
	// the stage times that sim was given
	Told   map[timeline.Stage]Told `json:"told,omitempty"`
	Starts []Start                 `json:"-"`
}

// A Start is one cold start as its activation record describes it.
type Start struct {
	Sandbox  string                     `json:"sandbox"`
	VF       string                     `json:"vf"`
	FastIOV  string                     `json:"fastiov"`
	Guest    string                     `json:"guestKernel"` // its kernel's release
	EndToEnd float64                    `json:"endToEndMs"`
	Coverage float64                    `json:"coverage"`
	StagesMs map[timeline.Stage]float64 `json:"stagesMs"`
	Begin    time.Time                  `json:"begin"`
	End      time.Time                  `json:"end"`
	Spans    []timeline.Span            `json:"spans"`
	Memory   []timeline.Footprint       `json:"memory"`
	Pull     *timeline.Pull             `json:"pull"`
}

// Run fires the bursts. An error means that the benchmark itself failed; a failed invocation is a
// result.
func (b *Burst) Run(ctx context.Context) (*BurstResult, error) {
	r := &BurstResult{N: b.N, Rounds: b.Rounds, Errors: map[string]int{}}
	p := newProgress(b.Out, b.N*b.Rounds)
	defer p.stop()
	for round := range b.Rounds {
		err := b.round(ctx, round, r, p)
		if err == nil && b.Node != nil {
			err = b.settle(ctx, r)
		}
		if err != nil {
			return nil, fmt.Errorf("round %d: %w", round+1, err)
		}
		p.round(fmt.Sprintf("burst  round %d/%d  %d/%d answered  %d leaked",
			round+1, b.Rounds, r.Answered, r.Requested, r.Leaked))
	}
	r.summarise()
	var scraped map[timeline.Stage]float64
	if b.Scraped != "" {
		var err error
		if scraped, err = byPrometheus(ctx, b.Scraped, r.Answered); err != nil {
			return nil, err
		}
	}
	r.holdAgainst(b.Sim, scraped)
	return r, nil
}

// round invokes N functions at once, each for the first time, so that no call finds another's warm
// sandbox.
func (b *Burst) round(ctx context.Context, round int, r *BurstResult, p *progress) error {
	var to target = actionsOf{b}
	if b.Services {
		to = &servicesOf{Burst: b, urls: map[string]string{}}
	}
	actions := make([]string, b.N)
	defer func() { // also after an interrupted burst
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		for _, action := range actions {
			if action != "" {
				// the next burst replaces a function that is left over
				_ = to.remove(ctx, action)
			}
		}
	}()
	for i := range actions {
		actions[i] = fmt.Sprintf("%s-%d-%d", b.Name, round+1, i+1)
		if err := to.put(ctx, actions[i], i); err != nil {
			return err
		}
	}
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		all = make(chan struct{})
	)
	for _, action := range actions {
		wg.Go(func() {
			<-all
			start, err := to.invoke(ctx, action)
			mu.Lock()
			defer mu.Unlock()
			r.count(start, err)
			if err == nil && b.After != nil {
				b.After(start)
			}
			p.show(r.Answered, r.Requested-r.Answered)
		})
	}
	if b.Before != nil {
		b.Before()
	}
	close(all)
	wg.Wait()
	return nil
}

func (r *BurstResult) count(start *Start, err error) {
	r.Requested++
	switch {
	case err == nil:
		r.Answered++
		r.Starts = append(r.Starts, *start)
	default:
		var answer *httpError
		if errors.As(err, &answer) && answer.status == http.StatusServiceUnavailable {
			r.Refused++
		}
		r.Errors[err.Error()]++
	}
}

// settle waits until the node has taken back what the round used, and counts the rest as leaked.
func (b *Burst) settle(ctx context.Context, r *BurstResult) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		st, err := b.Node.Status(ctx, &api.StatusRequest{})
		if err != nil {
			return err
		}
		r.Driver = st.Driver
		busy := unsettled(st)
		if len(busy) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			r.Leaked += len(busy)
			r.Leaks = append(r.Leaks, busy...)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func unsettled(st *api.StatusReply) (busy []string) {
	for _, s := range st.Sandboxes {
		busy = append(busy, "sandbox "+s.Id+" is "+s.State)
	}
	for _, v := range st.Vfs {
		if v.State != "idle" {
			busy = append(busy, "VF "+v.Bdf+" is "+v.State)
		}
	}
	return append(busy, st.Leftovers...)
}

// A target is an API at which functions are deployed and called.
type target interface {
	put(ctx context.Context, name string, n int) error
	invoke(ctx context.Context, name string) (*Start, error)
	remove(ctx context.Context, name string) error
}

// actionsOf are a burst's functions as OpenWhisk's actions.
type actionsOf struct{ *Burst }

func (b actionsOf) remove(ctx context.Context, action string) error {
	return b.call(ctx, http.MethodDelete, "actions/"+action, nil, nil)
}

func (b actionsOf) put(ctx context.Context, action string, n int) error {
	exec := map[string]any{"kind": b.Kind, "code": b.Code}
	if len(b.Images) > 0 {
		exec["kind"], exec["image"] = "blackbox", b.Images[n%len(b.Images)]
	}
	type parameter struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	with := []parameter{}
	for key, value := range b.With {
		with = append(with, parameter{key, value})
	}
	body := map[string]any{
		"exec": exec, "parameters": with,
		"limits": map[string]any{"memory": b.Memory, "timeout": 300_000},
	}
	return b.call(ctx, http.MethodPut, "actions/"+action+"?overwrite=true", body, nil)
}

// An activation holds the fields that a burst reads of an activation record.
type activation struct {
	ID       string `json:"activationId"`
	Response *struct {
		Success bool            `json:"success"`
		Result  json.RawMessage `json:"result"`
	} `json:"response"` // nil: only the id is known yet
	Annotations []struct {
		Key   string          `json:"key"`
		Value json.RawMessage `json:"value"`
	} `json:"annotations"`
}

func (b actionsOf) invoke(ctx context.Context, action string) (*Start, error) {
	a := &activation{}
	if err := b.call(ctx, http.MethodPost, "actions/"+action+"?blocking=true&result=false",
		map[string]any{}, a); err != nil {
		return nil, err
	}
	if a.Response == nil {
		if err := b.await(ctx, a); err != nil {
			return nil, err
		}
	}
	if !a.Response.Success {
		return nil, fmt.Errorf("it failed: %s", a.Response.Result)
	}
	return a.start()
}

func (a *activation) start() (*Start, error) {
	for _, note := range a.Annotations {
		if note.Key == "coldStart" {
			start := &Start{}
			return start, json.Unmarshal(note.Value, start)
		}
	}
	return nil, errors.New("it was no cold start")
}

// await fetches the record of an activation that took longer than the blocking call. It asks
// seldom: the record holds the times, and on a small node each request would take CPU time from the
// starts that are measured.
func (b *Burst) await(ctx context.Context, a *activation) error {
	for {
		err := b.call(ctx, http.MethodGet, "activations/"+a.ID, nil, a)
		var refused *httpError
		if !errors.As(err, &refused) || refused.status != http.StatusNotFound {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

type httpError struct {
	status int
	why    string
}

func (e *httpError) Error() string {
	return fmt.Sprintf("%d %s: %s", e.status, http.StatusText(e.status), e.why)
}

// call asks OpenWhisk's API.
func (b *Burst) call(ctx context.Context, method, path string, in, out any) error {
	return b.ask(ctx, method, "/api/v1/namespaces/_/"+path, in, out)
}

// ask sends a JSON body to the invoker and reads a JSON body. Every status from 300 is an error.
func (b *Burst) ask(ctx context.Context, method, path string, in, out any) error {
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, b.URL+path, &body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	user, password, _ := strings.Cut(b.Key, ":")
	req.SetBasicAuth(user, password)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		var said struct {
			// without the code beside it, so that equal errors count as one
			Error   string `json:"error"`
			Message string `json:"message"` // of Kubernetes
		}
		_ = json.Unmarshal(answer, &said)
		return &httpError{resp.StatusCode,
			cmp.Or(said.Error, said.Message, string(bytes.TrimSpace(answer)))}
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}
