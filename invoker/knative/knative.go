package knative

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/telemetry"
)

// Config says what an API is made of. All of it belongs to somebody else.
type Config struct {
	Pool      *pool.Pool
	Store     store.Store
	Directory *access.Directory
	// Identify returns whose key it is, if the request may use it.
	Identify func(*http.Request, access.Key) (*access.Identity, error)
	// Telemetry counts requests to services, and Keep keeps the records of their cold starts.
	Telemetry *telemetry.Metrics
	Keep      func(*telemetry.Call)
	Tokens    *Issuer  // of service accounts
	Domain    string   // services are at NAME.NAMESPACE.Domain
	Mapped    []string // DomainMappings may give them names below these, or with *, any
	Port      string   // of their URLs
	Log       *slog.Logger
}

// An API serves Knative's resources, and the services that they say.
type API struct {
	cfg       Config
	world     *world
	road      *road
	reconcile *reconciler
	mirror    *mirror
	prober    *prober
	watches   *readers
	closed    chan struct{}
	end       context.CancelFunc
}

// New returns an API that has read its store and goes on with what it says. Close ends it.
func New(cfg Config) (*API, error) {
	if why := validation.IsDNS1123Subdomain(cfg.Domain); why != nil {
		return nil, fmt.Errorf("--domain %q is no domain: %s", cfg.Domain, why[0])
	}
	names, err := namesBelow(cfg.Domain)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	a := &API{cfg: cfg, closed: make(chan struct{}), end: end,
		watches: newReaders("watches", mostWatches)}
	a.road = &road{pool: cfg.Pool, directory: cfg.Directory, names: names, domain: cfg.Domain,
		domains: newDomains(cfg.Domain, cfg.Mapped),
		port:    cfg.Port, telemetry: cfg.Telemetry, keep: cfg.Keep, tokens: cfg.Tokens,
		hosts: map[string]*split{}, of: map[name][]string{}}
	a.road.scales = newScales(a.road)
	a.reconcile, a.mirror = newReconciler(a.road), newMirror(cfg.Directory, cfg.Log)
	a.world, err = openWorld(ctx, cfg.Store, cfg.Log, a.mirror.leave,
		a.road.domains.follow, a.road.follow, a.reconcile.follow, a.mirror.follow)
	if err != nil {
		end()
		return nil, err
	}
	a.road.world = a.world
	cfg.Telemetry.Of(telemetry.Knative, func(full string) bool {
		namespace, service, _ := strings.Cut(full, "/")
		return a.world.get(configurations, namespace, service) != nil
	})
	a.road.scales.warn = a.mirror.warn
	a.mirror.run(ctx, a.world)
	a.prober = newProber(ctx, a.road, a.mirror.warn)
	cfg.Pool.Tell(func(s pool.Sandbox) {
		a.mirror.sandbox(s)
		a.prober.sandbox(s)
	})
	a.reconcile.run(ctx, &writer{world: a.world, most: cfg.Directory.Space})
	a.reconcile.done.Go(func() { a.road.scales.run(ctx) })
	return a, nil
}

// Close ends watches and reconcilers.
func (a *API) Close() {
	close(a.closed)
	a.reconcile.queue.ShutDown()
	a.end()
	a.reconcile.done.Wait()
	a.mirror.done.Wait()
	a.prober.done.Wait()
	a.world.close()
}

// Over returns a handler that takes what is Knative's and gives everything else to next: requests
// to services by their host, Kubernetes's clients by their paths or their bearer's token, and what
// the issuer of tokens shows.
func (a *API) Over(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case a.road.owns(r.Host):
			a.road.ServeHTTP(w, r)
		case kubernetesClient(r):
			a.api(w, r)
		case r.Method == http.MethodGet && a.cfg.Tokens.shown(r.URL.Path) != nil:
			show(w, a.cfg.Tokens.shown(r.URL.Path))
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// Refuse returns a handler that tells Kubernetes's clients why they are not served here.
func Refuse(why string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !kubernetesClient(r) {
			next.ServeHTTP(w, r)
			return
		}
		c := &call{w: w, r: r}
		c.fail(apierrors.NewServiceUnavailable(why))
	})
}

func kubernetesClient(r *http.Request) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch first {
	case "apis", "openapi", "version":
		return true
	case "api": // OpenWhisk's is there, too: its clients have a key of HTTP's basic scheme, and web
		// actions are sent any
		return r.URL.Path == "/api" ||
			strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") &&
				!strings.HasPrefix(r.URL.Path, "/api/v1/web/")
	}
	return false
}

// admitted counts a request on its user's account.
func (a *API) admitted(user *access.Identity, r *http.Request) error {
	var err error
	if r.Method == http.MethodGet {
		err = user.Read(time.Now(), user.Limits)
	} else {
		err = user.Change(time.Now(), user.Limits)
	}
	if err != nil {
		return apierrors.NewTooManyRequests(err.Error(), 1)
	}
	return nil
}
