package knative

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "knative.dev/serving/pkg/apis/serving/v1"
	"knative.dev/serving/pkg/reconciler/route/config"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/telemetry"
	node "github.com/fastiov/fastiov/node-agent/api"
)

// A road leads requests to sandboxes: host → route → revision → lease → connection. It knows the
// routes by their status alone, so it is right as soon as the store has been read.
type road struct {
	pool      *pool.Pool
	scales    *scales
	directory *access.Directory
	world     *world
	names     *config.Config
	domains   *domains
	domain    string
	port      string
	telemetry *telemetry.Metrics
	keep      func(*telemetry.Call)
	tokens    *Issuer

	mu    sync.RWMutex
	hosts map[string]*split
	of    map[name][]string // the hosts of each route
}

// A split says which part of a host's requests goes where. A host is one route's.
type split struct {
	route name
	parts []share
	whole int64
}

type share struct {
	revision string
	weight   int64
}

// follow takes in where a route leads now, and that a revision is gone.
func (r *road) follow(e *event) {
	to, is := e.entry.object.(*v1.Route)
	if !is {
		if v, is := e.entry.object.(*v1.Revision); is && e.what == "DELETED" {
			r.scales.forget(v)
		}
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, host := range r.of[e.entry.name] {
		delete(r.hosts, host)
	}
	delete(r.of, e.entry.name)
	if e.what == "DELETED" || to.Status.URL == nil {
		return
	}
	// A URL alone claims nothing: the status has one also where another route has its host.
	lead := func(host string, revision string, weight int64) {
		host = bare(host)
		s := r.split(e.entry.name, host)
		if s != nil && weight > 0 {
			s.parts = append(s.parts, share{revision, weight})
			s.whole += weight
		}
	}
	for _, t := range to.Status.Traffic {
		if t.Percent != nil {
			lead(to.Status.URL.Host, t.RevisionName, *t.Percent)
		}
		if t.URL != nil {
			lead(t.URL.Host, t.RevisionName, 100)
		}
	}
}

// split returns the split of a host, which is the route's from now on; nil: another route has it.
// The caller holds the lock.
func (r *road) split(route name, host string) *split {
	s := r.hosts[host]
	if s == nil {
		s = &split{route: route}
		r.hosts[host] = s
		r.of[route] = append(r.of[route], host)
	}
	if s.route != route {
		return nil
	}
	return s
}

// claim gives a route all of some hosts, or none and one that another route has: who had it first
// keeps it. A claim holds until the route's status says otherwise.
func (r *road) claim(route name, hosts []string) (taken string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, host := range hosts {
		if s := r.hosts[bare(host)]; s != nil && s.route != route {
			return bare(host)
		}
	}
	for _, host := range hosts {
		r.split(route, bare(host))
	}
	return ""
}

// bare returns a host without its port.
func bare(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// owns reports whether a host is below the domain of services, or one that a service has mapped.
func (r *road) owns(host string) bool {
	host = bare(host)
	_, mapped := r.domains.behind(host)
	return mapped || strings.HasSuffix(host, "."+r.domain)
}

// choose returns the revision that the next request to a host goes to, or nil.
func (r *road) choose(host string) *v1.Revision {
	host = bare(host)
	if route, mapped := r.domains.behind(host); mapped {
		host = r.hostOf(route)
	}
	r.mu.RLock()
	s := r.hosts[host]
	r.mu.RUnlock()
	if s == nil || s.whole == 0 {
		return nil
	}
	at := rand.Int64N(s.whole)
	for _, p := range s.parts {
		if at -= p.weight; at < 0 {
			if e := r.world.get(revisions, s.route.namespace, p.revision); e != nil {
				return e.object.(*v1.Revision)
			}
			return nil
		}
	}
	return nil
}

// hostOf returns the host of a route itself; empty: it has none.
func (r *road) hostOf(route name) string {
	e := r.world.get(routes, route.namespace, route.name)
	if e == nil || e.object.(*v1.Route).Status.URL == nil {
		return ""
	}
	return bare(e.object.(*v1.Route).Status.URL.Host)
}

// ServeHTTP has a request answered by a sandbox. It is buffered until one is ready.
func (r *road) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if r.domains.misdirected(req) {
		http.Error(w, bare(req.Host)+" is shown by another certificate than the name that this"+
			" connection was made for", http.StatusMisdirectedRequest)
		return
	}
	v := r.choose(req.Host)
	if v == nil {
		http.Error(w, "no service is ready at "+bare(req.Host), http.StatusNotFound)
		return
	}
	owner, err := r.directory.Owner(v.Namespace)
	if err == nil {
		err = owner.Call(time.Now(), owner.Limits)
	}
	if err != nil {
		fail(w, err)
		return
	}
	defer owner.Done()
	deadlines := http.NewResponseController(w)
	_ = deadlines.SetReadDeadline(time.Time{}) // a revision has its own
	_ = deadlines.SetWriteDeadline(time.Time{})
	_ = deadlines.EnableFullDuplex() // a program may answer while it reads
	p := &passage{road: r, revision: v, major: req.ProtoMajor, begun: time.Now(),
		grants: make(chan grant, 1)}
	p.pass(w, req)
}

// farewell is the time that a client has to take the last words of a request that was ended.
const farewell = time.Second

// mostHeader bounds what a program may have the invoker hold of an answer that has not begun.
const mostHeader = 64 << 10

// A passage is one request's way.
type passage struct {
	*road
	revision *v1.Revision
	major    int // of the version of HTTP in which it comes
	begun    time.Time
	grants   chan grant
	placed   pool.Placement // its last
	sent     time.Time      // to the sandbox
	told     bool           // how it went is counted
}

type grant struct {
	lease *pool.Lease
	err   error
}

func (p *passage) pass(w http.ResponseWriter, req *http.Request) {
	ctx, hangUp := context.WithCancelCause(req.Context())
	defer hangUp(nil)
	patience := time.AfterFunc(timeout(p.revision), func() { hangUp(errTimeout) })
	defer patience.Stop()
	cut := make(chan struct{})
	keep := context.AfterFunc(ctx, func() { // a client that sends or reads nothing would keep it
		defer close(cut)
		deadlines := http.NewResponseController(w)
		_ = deadlines.SetReadDeadline(time.Now())
		_ = deadlines.SetWriteDeadline(time.Now().Add(farewell))
	})
	defer func() {
		if !keep() {
			<-cut // it may not cut the connection's next request
		}
	}()
	demand := p.demand(p.revision)
	demand.Endless = req.Header.Get("Upgrade") != ""
	demand.Start = func() (*node.StartRequest, error) {
		start, err := p.startOf(p.revision)
		if err != nil {
			return nil, &unmade{err}
		}
		start.Call = &node.Call{Action: p.revision.Namespace + "/" + p.revision.Name,
			Namespace: p.revision.Namespace, WaitedNs: uint64(time.Since(p.begun))}
		return start, nil
	}
	lacks := p.lacks(p.revision)
	if lacks != nil && p.pool.Ready(demand) == 0 {
		p.fail(w, &unmade{lacks})
		return
	}
	leave := p.scales.arrive(p.revision, lacks, func() {
		p.pool.Acquire(demand, func(l *pool.Lease, err error) { p.grants <- grant{l, err} })
	})
	defer leave()
	for {
		select {
		case got := <-p.grants:
			if got.err != nil {
				p.scales.failed(p.revision)
				p.fail(w, got.err)
				return
			}
			if !p.use(got.lease, w, req.WithContext(ctx), hangUp, patience) {
				return
			}
		case <-ctx.Done():
			go func() {
				if got := <-p.grants; got.err == nil {
					got.lease.Release(true)
				}
			}()
			p.breakOff(ctx, w, nil)
			return
		}
	}
}

// use has the request answered by the sandbox of the lease, and gives the lease back. again: that
// sandbox has ended, and the request gets another grant.
func (p *passage) use(l *pool.Lease, w http.ResponseWriter, req *http.Request,
	hangUp context.CancelCauseFunc, patience *time.Timer) (again bool) {
	ctx, leased := req.Context(), l.Context()
	stop := context.AfterFunc(leased, func() { hangUp(context.Cause(leased)) })
	p.placed, p.sent = l.Placement, time.Now()
	conn, err := node.Connect(ctx, l.Client(), l.Sandbox, portOf(p.revision.Spec.GetContainer()))
	if err != nil {
		stop() // giving the lease back ends its context
		if l.Retry(err) {
			return true
		}
		l.Release(ctx.Err() != nil || ofNode(err))
		p.breakOff(ctx, w, err)
		return false
	}
	give := func(after time.Duration) *time.Timer {
		return time.AfterFunc(after, func() { hangUp(errTimeout) })
	}
	quiet := bound(p.revision.Spec.IdleTimeoutSeconds)
	begun, idle := give(bound(p.revision.Spec.ResponseStartTimeoutSeconds)), give(quiet)
	defer begun.Stop()
	defer idle.Stop()
	sent := &body{ReadCloser: req.Body}
	req.Body = sent
	req = req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteHeaders: func() { sent.begun.Store(true) }}))
	good := true // what broke off may be the caller's doing; the node tells of ends
	defer func() { l.Release(good) }()
	defer conn.Close()
	defer stop()
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite: func(out *httputil.ProxyRequest) {
			out.Out.URL.Scheme, out.Out.URL.Host, out.Out.Host = "http", out.In.Host, out.In.Host
			out.Out.Header["X-Forwarded-For"] = out.In.Header["X-Forwarded-For"]
			out.SetXForwarded()
			forwarded(out.Out.Header)
			out.Out.Trailer = out.In.Trailer // which the server fills in as the body ends
		},
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true,
			Protocols:              spokenBy(p.revision),
			MaxResponseHeaderBytes: mostHeader,
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				return conn, nil
			},
		},
		ModifyResponse: func(answer *http.Response) error {
			l.Answered(true)
			begun.Stop()
			if answer.StatusCode == http.StatusSwitchingProtocols {
				patience.Stop()
				idle.Stop()
			} else {
				answer.Body = &answering{ReadCloser: answer.Body, ctx: ctx, idle: idle, each: quiet,
					open: answer.ContentLength < 0}
			}
			p.answered(answer)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			cause := context.Cause(ctx)
			if (cause == nil || cause == errTimeout) && sent.waitsForProgram() {
				good = l.Answered(false)
			}
			p.breakOff(ctx, w, err)
		},
	}
	proxy.ServeHTTP(w, req)
	return false
}

// spokenBy returns the version of HTTP that a revision's program speaks: its port's name says so.
// What a client speaks is the client's own.
func spokenBy(v *v1.Revision) *http.Protocols {
	ports, spoken := v.Spec.GetContainer().Ports, &http.Protocols{}
	second := len(ports) > 0 && ports[0].Name == "h2c"
	spoken.SetHTTP1(!second)
	spoken.SetUnencryptedHTTP2(second)
	return spoken
}

// A body holds what a client sends after its headers, and whose turn it is.
type body struct {
	io.ReadCloser
	begun atomic.Bool // the headers are on their way
	owed  atomic.Bool // the client is to send more, or its last words were none
}

func (b *body) Read(p []byte) (int, error) {
	b.owed.Store(true)
	n, err := b.ReadCloser.Read(p)
	b.owed.Store(err != nil && err != io.EOF)
	return n, err
}

// waitsForProgram reports whether it is the program's turn: to answer, or to read.
func (b *body) waitsForProgram() bool { return b.begun.Load() && !b.owed.Load() }

// An answering holds what a program answers. Where that is to end before its end, and nobody has
// been told its length, it ends with those words, as in Knative.
type answering struct {
	io.ReadCloser
	ctx  context.Context
	idle *time.Timer
	each time.Duration // it may send nothing for so long
	open bool          // nobody knows its length
	said *strings.Reader
}

func (a *answering) Read(p []byte) (int, error) {
	if a.said != nil {
		return a.said.Read(p)
	}
	n, err := a.ReadCloser.Read(p)
	switch {
	case err == nil:
		a.idle.Reset(a.each)
	case a.open && context.Cause(a.ctx) == errTimeout:
		a.said = strings.NewReader("request timeout")
		err = nil
	}
	return n, err
}

// forwarded tells a program by the standard's header what X-Forwarded-… do, where it is not told.
func forwarded(h http.Header) {
	if h.Get("Forwarded") != "" {
		return
	}
	var by []string
	for _, all := range h["X-Forwarded-For"] {
		for one := range strings.SplitSeq(all, ",") {
			if one = strings.TrimSpace(one); strings.Contains(one, ":") {
				one = `"[` + strings.Trim(one, "[]") + `]"`
			}
			by = append(by, "for="+one)
		}
	}
	for _, of := range []string{"Host", "Proto"} {
		if value := h.Get("X-Forwarded-" + of); value != "" && len(by) > 0 {
			by[0] += ";" + strings.ToLower(of) + "=" + quoted(value)
		}
	}
	if len(by) > 0 {
		h.Set("Forwarded", strings.Join(by, ", "))
	}
}

// quoted returns a value as a header may have it: one with a port in quotes.
func quoted(value string) string {
	if strings.ContainsAny(value, ":[]") {
		return `"` + value + `"`
	}
	return value
}

// ofNode reports whether an error says that the node refused, and nothing of the sandbox.
func ofNode(err error) bool {
	switch status.Code(err) {
	case codes.ResourceExhausted, codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		return true
	}
	return false
}

var errTimeout = errors.New("request timeout: the service did not answer in time")

func timeout(v *v1.Revision) time.Duration {
	if s := v.Spec.TimeoutSeconds; s != nil && *s > 0 {
		return bound(s)
	}
	return time.Duration(rules.Defaults.RevisionTimeoutSeconds) * time.Second
}

// bound returns a time that a revision says, or one that no request takes.
func bound(seconds *int64) time.Duration {
	if seconds == nil || *seconds <= 0 {
		return unbounded
	}
	return time.Duration(*seconds) * time.Second
}

const unbounded = 100 * 365 * 24 * time.Hour

// breakOff answers a request that came to no end, with the cause of its context's end where it has
// one. What the client still sends is not read then, so its connection takes no other request.
func (p *passage) breakOff(ctx context.Context, w http.ResponseWriter, err error) {
	if cause := context.Cause(ctx); cause != nil {
		if p.major == 1 { // of HTTP/2 only the request's stream ends
			w.Header().Set("Connection", "close")
		}
		err = cause
	}
	p.fail(w, err)
}

// fail answers a request that no program answered.
func (p *passage) fail(w http.ResponseWriter, err error) {
	p.failed(err)
	fail(w, err)
}

// fail answers with why no program does.
func fail(w http.ResponseWriter, err error) {
	var refused *pool.Refused
	var many *access.TooMany
	code := http.StatusBadGateway
	switch {
	case errors.Is(err, errTimeout):
		code = http.StatusGatewayTimeout
	case errors.As(err, &many), errors.As(err, &refused) && refused.TooMany:
		code = http.StatusTooManyRequests
	case refused != nil, status.Code(err) == codes.ResourceExhausted:
		code = http.StatusServiceUnavailable
	}
	said := err.Error()
	if inner := (*unmade)(nil); errors.As(err, &inner) || // its names are the owner's business
		status.Code(errors.Unwrap(err)) == codes.InvalidArgument {
		code = http.StatusServiceUnavailable
		said = "the service cannot be started; the conditions of its revision tell its owner why"
	}
	http.Error(w, said, code)
}
