package openwhisk

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/share"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/telemetry"
	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// Config holds the parts that an API is made of.
type Config struct {
	Version string // of the product, as GET /api/v1 reports it
	Key     Key    // opens the namespace guest; see LoadKey
	Seal    *Seal  // for keys in promises; nil: one that ends with this process
	APIHost string // actions get it as __OW_API_HOST, e.g. http://10.0.2.2:3233
	// The longest wait of a blocking call, and the default one; 0: 60 s, as OpenWhisk's.
	Blocking time.Duration
	Limits   access.Limits    // of namespaces without their own; 0: access.Defaults
	Bounds   entity.Bounds    // of actions; zero: OpenWhisk's
	Bodies   int64            // bytes that all requests and waiting calls may hold; 0: 1 GiB
	Runtimes *entity.Runtimes // nil: the runtimes whose images this product makes
	Store    store.Store      // is not closed by Close
	Invoker  string           // names this one among those of the store
	Pool     pool.Config
	Tracer   trace.Tracer // takes cold starts; nil: none does
	Log      *slog.Logger // nil: the default

	Connections *share.Connections // of its listeners, to be counted; nil: they have no bound
}

// An API is the HTTP handler with its state. Close ends it.
type API struct {
	cfg       Config
	mux       *http.ServeMux
	pool      *pool.Pool
	catalog   *catalog
	directory *access.Directory
	bodies    *share.Whole
	foresees  bool // the pool may start sandboxes before anybody calls
	metrics   *Metrics
	telemetry *telemetry.Metrics
	denials   denials
	running   sync.WaitGroup
	adopting  sync.WaitGroup
	sent      atomic.Int64 // calls whose /run has left, and that have not ended
	closing   atomic.Bool
	unwatch   context.CancelFunc
}

// New returns an API that runs its actions on node and counts in registry, if there is one. It
// takes up what the store says was promised.
func New(
	cfg Config, node api.NodeClient, registry prometheus.Registerer,
) (_ *API, err error) {
	if cfg.Key.Secret == "" {
		return nil, errors.New("openwhisk: no key given; make one with LoadKey")
	}
	cfg.Blocking = cmp.Or(cfg.Blocking, time.Minute)
	cfg.Bounds = cmp.Or(cfg.Bounds, entity.OpenWhisks)
	cfg.Bodies = cmp.Or(cfg.Bodies, 1<<30)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	if cfg.Runtimes == nil {
		cfg.Runtimes = entity.Standard()
	}
	cfg.Seal = cmp.Or(cfg.Seal, newSeal())
	ctx, unwatch := context.WithCancel(context.Background())
	a := &API{
		cfg: cfg, pool: pool.New(cfg.Pool, node), directory: access.NewDirectory(cfg.Limits),
		bodies: share.Of(cfg.Bodies), unwatch: unwatch,
		foresees: cfg.Pool.Policy != nil && cfg.Pool.Policy.Remembers() > 0,
	}
	a.catalog = newCatalog(cfg.Store, a.directory.Space)
	defer func() {
		if err != nil {
			a.Close()
		}
	}()
	if a.telemetry, err = telemetry.New(registry, cfg.Tracer); err != nil {
		return nil, err
	}
	a.telemetry.Of(telemetry.OpenWhisk, a.exists)
	if registry != nil {
		if a.metrics, err = NewMetrics(registry); err != nil {
			return nil, err
		}
		for _, c := range []prometheus.Collector{a.pool, a} {
			if err := registry.Register(c); err != nil {
				return nil, err
			}
		}
	}
	if err := a.directory.Add(cfg.Key.subject()); err != nil {
		return nil, err
	}
	if err := cfg.Store.Watch(ctx, a.see); err != nil {
		return nil, err
	}
	a.routes()
	if err := cfg.Store.Take(ctx, cfg.Invoker); err != nil {
		return nil, err
	}
	if err := a.keepPromises(ctx); err != nil {
		return nil, err
	}
	a.adopting.Go(func() { a.adoptPromises(ctx) })
	return a, nil
}

// see takes in a change of the store.
func (a *API) see(doc store.Doc) {
	if doc.Kind == store.Packages {
		if old, _ := a.catalog.packages.get(doc.Namespace, doc.Name); old != nil {
			defer a.retireOf(old)
		}
	}
	if err := errors.Join(a.catalog.see(doc, a.retire), a.directory.See(doc)); err != nil {
		a.cfg.Log.Error("a document of the store cannot be used", "err", err)
	}
	if namespace, is := access.Purged(doc); is {
		a.pool.RetireAll(namespace)
	}
}

// Register returns the register of users, which changes who may call.
func (a *API) Register() *access.Register {
	return &access.Register{Store: a.cfg.Store, Directory: a.directory}
}

// Pool returns the pool, for APIs beside this one. It ends with this API.
func (a *API) Pool() *pool.Pool { return a.pool }

// Telemetry returns what counts and traces calls, for APIs beside this one.
func (a *API) Telemetry() *telemetry.Metrics { return a.telemetry }

// Keep keeps the record of a cold start that came by another API. It is listed and read as an
// activation, of that kind.
func (a *API) Keep(c *telemetry.Call) {
	namespace, name, _ := strings.Cut(c.Function, "/")
	r := &activation.Record{ID: c.ID, Namespace: namespace, Name: name, Subject: namespace,
		Version: "0.0.1", Kind: c.Kind, Path: c.Function, Cold: c.Cold,
		Start: c.Cold.End, End: c.Cold.End}
	if c.Status != telemetry.Success {
		r.Response = activation.Failed(activation.Status(c.Status), c.Why)
	}
	for _, s := range c.Cold.Spans {
		if s.Stage == timeline.FirstByte {
			r.Start = s.Begin
		}
	}
	r.Wait = max(r.Start.Sub(c.Cold.Begin), 0)
	a.cfg.Store.Finish(r.Kept())
}

// Waiting counts the calls that wait for a sandbox.
func (a *API) Waiting() int { return a.pool.Depth() }

func (a *API) routes() {
	a.mux = http.NewServeMux()
	c := a.catalog
	a.mux.HandleFunc("GET /{$}", a.info)
	a.mux.HandleFunc("GET "+base, a.info)
	a.mux.HandleFunc("GET "+base+"/{$}", a.info)
	action := map[string]handler{
		"PUT": a.putAction, "GET": a.getAction, "DELETE": a.deleteAction, "POST": a.invoke,
	}
	for path, methods := range map[string]map[string]handler{
		"/namespaces":                    {"GET": a.listNamespaces},
		"/namespaces/{namespace}/limits": {"GET": a.getLimits},
		"/namespaces/{namespace}/actions": {
			"GET": listing("actions", &c.actions, summary),
		},
		"/namespaces/{namespace}/actions/{name}":           action,
		"/namespaces/{namespace}/actions/{package}/{$}":    {"GET": a.listPackageActions},
		"/namespaces/{namespace}/actions/{package}/{name}": action,
		"/namespaces/{namespace}/packages":                 {"GET": a.listPackages},
		"/namespaces/{namespace}/packages/{name}": {
			"PUT": a.putPackage, "GET": a.getPackage, "DELETE": a.deletePackage,
			"POST": a.refreshPackages,
		},
		"/namespaces/{namespace}/triggers": {
			"GET": listing("triggers", &c.triggers, (*entity.Trigger).Summary),
		},
		"/namespaces/{namespace}/triggers/{name}": {
			"PUT": a.putTrigger, "GET": getting(&c.triggers, a.withRules),
			"DELETE": deleting(c, &c.triggers, a.withRules), "POST": a.fireTrigger,
		},
		"/namespaces/{namespace}/rules": {"GET": listing("rules", &c.rules, a.effective)},
		"/namespaces/{namespace}/rules/{name}": {
			"PUT": a.putRule, "GET": getting(&c.rules, a.effective),
			"DELETE": deleting(c, &c.rules, deletedRule), "POST": a.setRule,
		},
		"/namespaces/{namespace}/activations":             {"GET": a.listActivations},
		"/namespaces/{namespace}/activations/{id}":        {"GET": a.getActivation},
		"/namespaces/{namespace}/activations/{id}/logs":   {"GET": a.getLogs},
		"/namespaces/{namespace}/activations/{id}/result": {"GET": a.getResult},
	} {
		for method, serve := range methods {
			a.mux.Handle(method+" "+base+path, a.authenticated(serve))
		}
		if !strings.HasSuffix(path, "{$}") {
			a.mux.Handle(base+path, a.authenticated(notAllowed))
		}
	}
	a.mux.Handle("/",
		a.authenticated(func(_ http.ResponseWriter, r *http.Request, _ *request) error {
			return notFound("%s %s is not served", r.Method, r.URL.Path)
		}))
}

func notAllowed(_ http.ResponseWriter, r *http.Request, _ *request) error {
	return fail(http.StatusMethodNotAllowed, "%s is not supported for %s", r.Method, r.URL.Path)
}

func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, webBase) {
		a.web(w, r)
		return
	}
	if r.Method == http.MethodOptions { // a browser asks before it sends the key
		a.shareWith(w, r)
		return
	}
	a.mux.ServeHTTP(w, r)
}
