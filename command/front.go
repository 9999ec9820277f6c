package command

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/functions"
	"github.com/fastiov/fastiov/invoker/knative"
	"github.com/fastiov/fastiov/invoker/live"
	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/invoker/openwhisk/entity"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/share"
	"github.com/fastiov/fastiov/node-agent/api"
)

// A front holds an invoker's listeners and store, opened before it has nodes. So a port that is
// taken or a store that is not there is reported before anything is started.
type front struct {
	cfg      openwhisk.Config
	plain    net.Listener
	secure   net.Listener // nil: none
	secured  *tls.Config  // of both: how HTTPS is spoken
	runDir   string
	stateDir string
	drain    time.Duration
	domain   string // of Knative's services
	mapped   string // where they may have names of their own; empty: the default
	tokens   *knative.Issuer
	// The file that says which sandboxes were left for the next invoker; empty: none are.
	warm    string
	watched []live.Named // the nodes that the live page shows
	closers
}

func (i *invokerFlags) open(ctx context.Context, runDir, stateDir string,
	log *slog.Logger) (_ *front, err error) {
	f := &front{runDir: runDir, stateDir: stateDir, drain: i.drain, domain: i.domain,
		mapped: i.mapped}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	f.cfg = openwhisk.Config{
		Version: version, APIHost: i.host(), Limits: i.limits(), Log: log,
		Invoker: cmp.Or(i.name, hostname()), Runtimes: entity.Standard(),
	}
	if f.cfg.Key, err = i.key(stateDir); err != nil {
		return nil, err
	}
	if f.cfg.Seal, err = openwhisk.LoadSeal(filepath.Join(stateDir, "promises.key")); err != nil {
		return nil, err
	}
	if i.runtimes != "" {
		content, err := os.ReadFile(i.runtimes)
		if err != nil {
			return nil, fmt.Errorf("--runtimes: %w", err)
		}
		if f.cfg.Runtimes, err = entity.ParseRuntimes(content); err != nil {
			return nil, fmt.Errorf("--runtimes %s: %w", i.runtimes, err)
		}
	}
	memory, err := memoryLimit()
	if err != nil {
		return nil, err
	}
	most, err := mostConnections(memory)
	if err != nil {
		return nil, err
	}
	f.cfg.Bodies, f.cfg.Connections = int64(bodyShare*float64(memory)), share.NewConnections(most)
	if f.plain, err = f.open(whatListen, "listen", i.listen); err != nil {
		return nil, err
	}
	certificate, err := openwhisk.LoadCertificate(
		i.tlsCert, i.tlsKey, stateDir, cmp.Or(i.https, i.listen))
	if err != nil {
		return nil, err
	}
	f.secured = securedBy(certificate)
	f.plain = either{f.cfg.Connections.Bound(f.plain, openwhisk.NoConnection), f.secured}
	served := []net.Listener{f.plain}
	if i.https != "" {
		listener, err := f.open(whatListen, "https", i.https)
		if err != nil {
			return nil, err
		}
		served = append(served, listener)
		f.secure = tls.NewListener(f.cfg.Connections.Bound(listener, nil), f.secured)
	}
	if len(inheritedDoors()) == 0 { // else the process that opened them has noted it
		if err := noteListen(runDir, served...); err != nil {
			return nil, err
		}
	}
	f.cfg.Store, err = i.store.open(ctx, stateDir, log)
	if err != nil {
		return nil, err
	}
	f.onClose(func() {
		if err := f.cfg.Store.Close(); err != nil {
			log.Error("store", "err", err)
		}
	})
	if f.tokens, err = f.issuer(); err != nil {
		return nil, err
	}
	stop, err := serveStorage(i.storage, filepath.Join(stateDir, "storage"), log)
	if err != nil {
		return nil, err
	}
	f.onClose(stop)
	return f, nil
}

// securedBy returns how HTTPS is spoken: by HTTP/2 with whoever can, and by HTTP/1.1.
func securedBy(certificate *openwhisk.Certificate) *tls.Config {
	return &tls.Config{GetCertificate: certificate.Get, MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"}}
}

const whatListen = "OpenWhisk API"

func (f *front) open(what, flag, address string) (net.Listener, error) {
	listener, err := openDoor(what, flag, address)
	if err == nil {
		f.onClose(func() { listener.Close() })
	}
	return listener, err
}

// serve runs the invoker until ctx ends.
func (f *front) serve(
	ctx context.Context, nodes pool.Config, node api.NodeClient, registry prometheus.Registerer,
) error {
	collectSeldom()
	if os.Getenv("GOMAXPROCS") == "" {
		// The store's writer waits for the disk in system calls. The runtime takes a processor for
		// blocked only after a while, which may be 10 ms. Until then calls would have one processor
		// less than the machine has.
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	}
	f.cfg.Pool = nodes
	f.cfg.Pool.Left = takeLeft(f.warm, f.cfg.Log)
	f.cfg.Pool.StemCells = stemCells(f.cfg.Runtimes, f.cfg.APIHost)
	whisk, err := openwhisk.New(f.cfg, node, registry)
	if err != nil {
		return err
	}
	defer whisk.Close()
	admin, err := openUserDoor(f.runDir, groupOfSockets())
	if err != nil {
		return err
	}
	page := f.livePage(whisk)
	// a service has all paths of its host, the page's too: it must not be in a tenant's origin
	handler, endWings, err := f.withWings(whisk, page.Over(whisk))
	if err != nil {
		return err
	}
	withPage := func(server *http.Server) *http.Server {
		server.Handler = handler
		tellTLS(server)
		takeHTTP2(server)
		server.RegisterOnShutdown(page.Close)
		return server
	}
	servers := []*http.Server{{Handler: whisk.Register(), ReadHeaderTimeout: 10 * time.Second},
		withPage(whisk.Server())}
	listeners := []net.Listener{admin, f.plain}
	if f.secure != nil {
		servers, listeners = append(servers, withPage(whisk.Server())), append(listeners, f.secure)
	}
	storeOf.Store(&f.cfg.Store)
	err = serve(ctx, servers, listeners, f.cfg.Log)
	endWings()
	f.stop(servers, whisk)
	return err
}

// livePage returns the page of the invoker. Its button does a `fastiov burst`, with the key of the
// person who presses it.
func (f *front) livePage(whisk *openwhisk.API) *live.Page {
	return live.New(live.Config{
		Version: version, Nodes: f.watched, Waiting: whisk.Waiting, Admit: whisk.Admit,
		OpenKey: f.cfg.Key.Open(),
		Burst: func(ctx context.Context, key string, n int) (any, error) {
			b := bench.Burst{
				URL: "http://" + f.plain.Addr().String(), Key: key, Name: "page-burst", N: n,
				Rounds: 1,
				Memory: 256, Kind: "python:3", Code: functions.HelloPython, Out: io.Discard,
			}
			return b.Run(ctx)
		},
	})
}

// stemCells returns the sandboxes that runtimes.json wants ready before any call.
func stemCells(runtimes *entity.Runtimes, apiHost string) (cells []pool.StemCell) {
	for _, family := range runtimes.Families() {
		for _, runtime := range family {
			for _, cell := range runtime.StemCells {
				made := pool.StemCell{
					Image: runtime.Image.String(), MemoryMiB: int(cell.Memory), Count: cell.Count,
					Env: map[string]string{"__OW_API_HOST": apiHost},
				}
				if r := cell.Reactive; r != nil {
					made.Reactive = pool.Reactive{Min: r.Min, Max: r.Max, TTL: time.Duration(r.TTL),
						Threshold: r.Threshold, Increment: r.Increment}
				}
				cells = append(cells, made)
			}
		}
	}
	return cells
}

// serveUntil serves until ctx ends or a server fails.
func serveUntil(ctx context.Context, servers []*http.Server, listeners []net.Listener,
	log *slog.Logger) error {
	err := serve(ctx, servers, listeners, log)
	shutDown(servers, 5*time.Second)
	return err
}

func serve(ctx context.Context, servers []*http.Server, listeners []net.Listener,
	log *slog.Logger) error {
	failed := make(chan error, len(servers))
	for n, server := range servers {
		go func() { failed <- server.Serve(listeners[n]) }()
		log.Info("API ready", "address", listeners[n].Addr())
	}
	tellParent(ready)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

func shutDown(servers []*http.Server, within time.Duration) {
	patience, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	for _, server := range servers {
		if server.Shutdown(patience) != nil {
			server.Close()
		}
	}
}

// stop ends an invoker's services. It is not ready any more and takes no call. Waiting callers and
// running calls have the time of --drain. Calls that run then are ended, and their callers are
// told.
func (f *front) stop(servers []*http.Server, whisk *openwhisk.API) {
	serves.Store(false)
	f.cfg.Log.Info("stopping: no call is taken any more, and those under way may end",
		"within", f.drain)
	whisk.Stop()
	drain, cancel := context.WithTimeout(context.Background(), f.drain)
	defer cancel()
	var answered sync.WaitGroup
	for _, server := range servers {
		answered.Go(func() { _ = server.Shutdown(drain) })
	}
	answered.Wait()
	whisk.Await(drain)
	if f.warm == "" {
		whisk.Close()
	} else if err := noteLeft(f.warm, whisk.Leave()); err != nil {
		f.cfg.Log.Error("which sandboxes are warm cannot be noted; the next invoker ends them",
			"err", err)
	}
	shutDown(servers, 5*time.Second)
}
