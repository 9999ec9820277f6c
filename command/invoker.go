package command

import (
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
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/functions"
	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/entity"
	"github.com/fastiov/fastiov/invoker/live"
	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/share"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/open"
)

// invokerFlags are what an invoker is told.
type invokerFlags struct {
	listen    string
	https     string
	tlsCert   string
	tlsKey    string
	apiHost   string
	name      string
	store     storeFlags
	storage   string
	user      string // of a process of its own; empty: the agent's
	runtimes  string
	limits    func() access.Limits
	keepAlive time.Duration
	policy    string
	pause     time.Duration
	wait      time.Duration
	drain     time.Duration
}

func (i *invokerFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&i.listen, "listen", "127.0.0.1:3233", "where the OpenWhisk API is served; other than on loopback it takes only keys that were made here")
	f.StringVar(&i.https, "https", "", "where it is served by HTTPS as well, e.g. 0.0.0.0:3443 (default: nowhere)")
	f.StringVar(&i.tlsCert, "tls-cert", "", "certificate for --https, PEM (default: one that is made at first start; clients must be told to trust it, as by `wsk -i`)")
	f.StringVar(&i.tlsKey, "tls-key", "", "its key, PEM")
	f.StringVar(&i.apiHost, "api-host", "", "what functions get as __OW_API_HOST (default: http:// and the listen address)")
	f.StringVar(&i.name, "name", hostname(), "what this invoker is called among those that share its store")
	i.store.register(cmd)
	f.StringVar(&i.storage, "storage", "", "where functions find a storage server, which keeps its objects in --state-dir;"+
		" whoever reaches it may read and write them all (default: nowhere)")
	f.StringVar(&i.runtimes, "runtimes", "", "a runtimes.json in OpenWhisk's format (default: the runtimes that `fastiov image` makes)")
	i.limits = limitFlags(f, access.Defaults)
	f.DurationVar(&i.keepAlive, "keep-alive", 10*time.Minute, "how long a warm sandbox waits for another call")
	f.StringVar(&i.policy, "keep-alive-policy", "fixed", "fixed: every sandbox waits for --keep-alive; histogram: as long as its function's calls have been apart, --keep-alive where they say nothing")
	f.DurationVar(&i.pause, "pause-after", 10*time.Second, "how long a warm sandbox waits before it is paused; 0: it never is")
	f.DurationVar(&i.wait, "wait", time.Minute, "how long a call queues for a sandbox before it is refused with the reason")
	f.DurationVar(&i.drain, "drain", 15*time.Second, "how long a stop waits for calls that run, and for callers who wait, before they are ended")
}

// storeFlags name what an invoker must not forget.
type storeFlags struct {
	where    string
	password string // the file that holds it
	retain   int
}

func (s *storeFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.where, "store", "", "where entities and activations are kept: a file, or redis://host:port (default: invoker.db in --state-dir)")
	cmd.Flags().StringVar(&s.password, "store-password-file", "", "the file with the password to --store")
	cmd.Flags().IntVar(&s.retain, "retain", 1024, "MiB of activation records to retain; the oldest are forgotten")
}

func (s *storeFlags) open(ctx context.Context, stateDir string, log *slog.Logger) (store.Store, error) {
	where, err := withPassword("store", s.where, s.password)
	if err != nil {
		return nil, err
	}
	if where == "" {
		if err := os.MkdirAll(stateDir, 0o700); err != nil {
			return nil, err
		}
		where = filepath.Join(stateDir, "invoker.db")
	}
	return open.Store(ctx, where, int64(s.retain)<<20, log)
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "invoker"
	}
	return name
}

// pool is how the nodes are used; start is how long a start may take.
func (i *invokerFlags) pool(start time.Duration) (pool.Config, error) {
	cfg := pool.Config{KeepAlive: i.keepAlive, PauseAfter: i.pause, Wait: i.wait, Start: start}
	switch i.policy {
	case "fixed":
	case "histogram":
		cfg.Policy = pool.Histogram{Otherwise: i.keepAlive}
	default:
		return cfg, fmt.Errorf("--keep-alive-policy %q: there are fixed and histogram", i.policy)
	}
	return cfg, nil
}

func (i *invokerFlags) host() string {
	if i.apiHost != "" {
		return i.apiHost
	}
	return "http://" + i.listen
}

// key is the one that the invoker starts with: the well-known one only where every listener is on loopback.
func (i *invokerFlags) key(stateDir string) (openwhisk.Key, error) {
	if i.https == "" {
		return openwhisk.LoadKey(i.listen, keyFile(stateDir))
	}
	return openwhisk.LoadKey(i.listen, keyFile(stateDir), i.https)
}

func keyFile(stateDir string) string { return filepath.Join(stateDir, "key") }

// A front is what an invoker has before it has nodes: found first, so that a port that is taken and a store that is not there are said
// before anything is started.
type front struct {
	cfg     openwhisk.Config
	plain   net.Listener
	secure  net.Listener // nil: none
	runDir  string
	drain   time.Duration
	warm    string       // the file that says which sandboxes were left for the next; empty: none are
	watched []live.Named // the nodes that the live page shows
	closers []func()
}

func (f *front) onClose(close func()) { f.closers = append(f.closers, close) }

func (f *front) close() {
	for n := len(f.closers) - 1; n >= 0; n-- {
		f.closers[n]()
	}
}

func (i *invokerFlags) open(ctx context.Context, runDir, stateDir string, log *slog.Logger) (_ *front, err error) {
	f := &front{runDir: runDir, drain: i.drain}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	f.cfg = openwhisk.Config{
		Version: version, APIHost: i.host(), Limits: i.limits(), Invoker: i.name, Log: log,
		Runtimes: entity.Standard(),
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
	f.plain = f.cfg.Connections.Bound(f.plain, openwhisk.NoConnection)
	served := []net.Listener{f.plain}
	if i.https != "" {
		certificate, err := openwhisk.LoadCertificate(i.tlsCert, i.tlsKey, stateDir, i.https)
		if err != nil {
			return nil, err
		}
		listener, err := f.open(whatListen, "https", i.https)
		if err != nil {
			return nil, err
		}
		served = append(served, listener)
		f.secure = tls.NewListener(f.cfg.Connections.Bound(listener, nil), &tls.Config{
			GetCertificate: certificate.Get, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		})
	}
	if len(inheritedDoors()) == 0 { // else whoever opened them has noted it
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
	stop, err := serveStorage(i.storage, filepath.Join(stateDir, "storage"), log)
	if err != nil {
		return nil, err
	}
	f.onClose(stop)
	return f, nil
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
func (f *front) serve(ctx context.Context, nodes pool.Config, node pool.Node, registry prometheus.Registerer) error {
	collectSeldom()
	if os.Getenv("GOMAXPROCS") == "" {
		// The store's writer waits for the disk in system calls. The runtime takes a processor for blocked only after a while, which may be
		// 10 ms; as long, calls would have to do with one less than the machine has.
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
	withPage := func(server *http.Server) *http.Server {
		server.Handler = page.Over(server.Handler)
		server.RegisterOnShutdown(page.Close)
		return server
	}
	servers := []*http.Server{{Handler: whisk.Register(), ReadHeaderTimeout: 10 * time.Second}, withPage(whisk.Server())}
	listeners := []net.Listener{admin, f.plain}
	if f.secure != nil {
		servers, listeners = append(servers, withPage(whisk.Server())), append(listeners, f.secure)
	}
	storeOf.Store(&f.cfg.Store)
	err = serve(ctx, servers, listeners, f.cfg.Log)
	f.stop(servers, whisk)
	return err
}

// livePage is the page of the invoker; its button is `fastiov burst`, with the key of whoever presses it.
func (f *front) livePage(whisk *openwhisk.API) *live.Page {
	return live.New(live.Config{
		Version: version, Nodes: f.watched, Waiting: whisk.Waiting, Admit: whisk.Admit, OpenKey: f.cfg.Key.Open(),
		Burst: func(ctx context.Context, key string, n int) (any, error) {
			b := bench.Burst{
				URL: "http://" + f.plain.Addr().String(), Key: key, Name: "page-burst", N: n, Rounds: 1,
				Memory: 256, Kind: "python:3", Code: functions.HelloPython, Out: io.Discard,
			}
			return b.Run(ctx)
		},
	})
}

// stemCells are the sandboxes that runtimes.json wants ready before anybody calls.
func stemCells(runtimes *entity.Runtimes, apiHost string) (cells []pool.StemCell) {
	for _, family := range runtimes.Families() {
		for _, runtime := range family {
			for _, cell := range runtime.StemCells {
				made := pool.StemCell{
					Image: runtime.Image.String(), MemoryMiB: int(cell.Memory), Count: cell.Count, Env: map[string]string{"__OW_API_HOST": apiHost},
				}
				if r := cell.Reactive; r != nil {
					made.Reactive = pool.Reactive{Min: r.Min, Max: r.Max, TTL: time.Duration(r.TTL), Threshold: r.Threshold, Increment: r.Increment}
				}
				cells = append(cells, made)
			}
		}
	}
	return cells
}

// serveUntil serves until ctx ends or a server fails.
func serveUntil(ctx context.Context, servers []*http.Server, listeners []net.Listener, log *slog.Logger) error {
	err := serve(ctx, servers, listeners, log)
	shutDown(servers, 5*time.Second)
	return err
}

func serve(ctx context.Context, servers []*http.Server, listeners []net.Listener, log *slog.Logger) error {
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
