package knative

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	v1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/fastiov/fastiov/invoker/pool"
	node "github.com/fastiov/fastiov/node-agent/api"
)

// A prober asks sandboxes whose revision says so, as long as they are there, whether they live and
// whether they are ready, as a kubelet does. One that does not live is ended, and started again
// where it is needed; one that is not ready gets no requests until it is. It also has the tokens of
// their service accounts renewed.
type prober struct {
	ctx     context.Context
	road    *road
	warn    warn
	renewal renewal
	done    sync.WaitGroup

	mu sync.Mutex
	of map[string]context.CancelFunc // by sandbox
}

func newProber(ctx context.Context, r *road, say warn) *prober {
	return &prober{road: r, ctx: ctx, warn: say, renewal: newRenewal(),
		of: map[string]context.CancelFunc{}}
}

// sandbox takes in news of a sandbox. The pool's lock is held.
func (p *prober) sandbox(s pool.Sandbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	leave, known := p.of[s.ID]
	switch {
	case s.Gone && known:
		leave()
		delete(p.of, s.ID)
	case s.Ready && !s.Gone && !known && p.ctx.Err() == nil:
		ctx, leave := context.WithCancel(p.ctx)
		p.of[s.ID] = leave
		p.done.Go(func() { p.probe(ctx, s) })
	}
}

// probe probes a sandbox until ctx ends.
func (p *prober) probe(ctx context.Context, s pool.Sandbox) {
	of := strings.Split(s.Group, "/") // as groupOf names it
	if len(of) != 4 {
		return
	}
	e := p.road.world.get(revisions, s.Namespace, of[2])
	if e == nil || string(e.object.GetUID()) != of[3] {
		return
	}
	v := e.object.(*v1.Revision)
	c := v.Spec.GetContainer()
	for i := range v.Spec.Containers {
		p.done.Go(func() { p.renew(ctx, s, v, &v.Spec.Containers[i]) })
	}
	if alive := c.LivenessProbe; alive != nil {
		p.done.Go(func() {
			p.repeat(ctx, s, v, alive, func(_ bool, why error) {
				p.road.pool.Fail(s.ID, fmt.Errorf("liveness probe failed: %s", saidOf(s.ID, why)))
			})
		})
	}
	if goesOn(c.ReadinessProbe) {
		p.repeat(ctx, s, v, c.ReadinessProbe, func(well bool, _ error) {
			p.road.pool.Rest(s.ID, !well)
		})
	}
}

// goesOn reports whether a readiness probe is made again once it has gone well. A connection of
// which no period is said is Knative's default: a program that takes none is noticed by requests.
func goesOn(p *corev1.Probe) bool {
	return p != nil && (p.HTTPGet != nil || p.Exec != nil || p.PeriodSeconds > 0)
}

// probed reports whether the sandboxes of a revision are asked again and again.
func probed(c *corev1.Container) bool {
	return c.LivenessProbe != nil || goesOn(c.ReadinessProbe)
}

// Kubernetes's, where a probe does not say them.
const (
	probePeriod, probeTimeout     = 10, 1 // seconds
	probeFailures, probeSuccesses = 3, 1  // in a row, until it counts
)

// betweenUnmade is the time until a node is asked again that could not make a probe.
const betweenUnmade = time.Minute

// repeat makes a probe again and again, and tells each turn. Where a node cannot make it, as of a
// former version, the revision's owner is told.
func (p *prober) repeat(ctx context.Context, s pool.Sandbox, v *v1.Revision, probe *corev1.Probe,
	turn func(well bool, why error)) {
	seconds := func(n int32) time.Duration { return time.Duration(n) * time.Second }
	period := seconds(cmp.Or(probe.PeriodSeconds, probePeriod))
	well, row := true, int32(0) // so many in a row that say otherwise
	for next := max(seconds(probe.InitialDelaySeconds), period); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
		next = period
		within := seconds(cmp.Or(probe.TimeoutSeconds, probeTimeout))
		err := ask(ctx, s, v.Spec.GetContainer(), probe, within)
		switch code := status.Code(err); {
		case ctx.Err() != nil:
			return
		case code == codes.Unimplemented:
			instead := "a GET or a connection"
			if probe.Exec == nil {
				instead = "another, on a node of this version"
			}
			p.warn(v, "ProbeNotMade", saidOf(s.ID, err)+"; have it probed by "+instead)
			next = max(period, betweenUnmade)
			continue
		case code == codes.Unavailable, code == codes.ResourceExhausted, // that is the node's fault
			isLate(err) && !answers(ctx, s, within):
		case (err == nil) == well:
			row = 0
		default:
			row++
		}
		needed := cmp.Or(probe.FailureThreshold, probeFailures)
		if !well {
			needed = cmp.Or(probe.SuccessThreshold, probeSuccesses)
		}
		if row >= needed {
			well, row = !well, 0
			turn(well, err)
		}
	}
}

// isLate reports whether a probe had no answer in its time.
func isLate(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded
}

// answers reports whether a sandbox's node itself answers within a time, and has adopted the
// sandbox: until then it has calls wait.
func answers(ctx context.Context, s pool.Sandbox, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	reply, err := s.Client.Status(ctx, &node.StatusRequest{Brief: true})
	return err == nil && !slices.ContainsFunc(reply.Sandboxes, func(held *node.Sandbox) bool {
		return held.Id == s.ID && held.State == "adopting"
	})
}

// saidOf returns what an error says of a sandbox without its name and the code of its node's
// answer: so it is the same of all sandboxes.
func saidOf(id string, err error) string {
	said := err.Error()
	if s, is := status.FromError(err); is {
		said = s.Message()
	}
	return strings.NewReplacer("sandbox "+id+": ", "", "sandbox "+id, "the sandbox",
		fmt.Sprintf(" %q", id), "").Replace(said)
}

// ask makes a probe once, and returns why it did not go well.
func ask(ctx context.Context, s pool.Sandbox, c *corev1.Container, probe *corev1.Probe,
	within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if e := probe.Exec; e != nil {
		reply, err := s.Client.Exec(ctx, &node.ExecRequest{Id: s.ID, Command: e.Command,
			TimeoutMs: uint32(within.Milliseconds())})
		switch {
		case err != nil:
			return err
		case reply.Late:
			return fmt.Errorf("%.80q has not ended within %v", e.Command, within)
		case reply.Status != 0:
			return fmt.Errorf("%.80q ends with status %d", e.Command, reply.Status)
		}
		return nil
	}
	port := portOf(c)
	connect := func(context.Context, string, string) (net.Conn, error) {
		return node.Connect(ctx, s.Client, s.ID, port)
	}
	if to := probe.TCPSocket; to != nil {
		port = cmp.Or(to.Port.IntValue(), port)
		conn, err := connect(ctx, "", "")
		if err == nil {
			conn.Close()
		}
		return err
	}
	get := probe.HTTPGet
	port = cmp.Or(get.Port.IntValue(), port)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.ToLower(string(cmp.Or(
		get.Scheme, corev1.URISchemeHTTP)))+"://"+net.JoinHostPort(cmp.Or(get.Host, "localhost"),
		strconv.Itoa(port))+"/"+strings.TrimPrefix(get.Path, "/"), nil)
	if err != nil {
		return err
	}
	for _, h := range get.HTTPHeaders {
		request.Header.Add(h.Name, h.Value)
	}
	transport := &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: mostHeader,
		DialContext:     connect,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // as a kubelet
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, mostHeader) // the program may dislike being cut off
	if answer.StatusCode < http.StatusOK || answer.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("GET %s answers %s", get.Path, answer.Status)
	}
	return nil
}
