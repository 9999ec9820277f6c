package command

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fastiov/fastiov/command/settings"
	"github.com/fastiov/fastiov/invoker/access"
	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/open"
)

// invokerFlags hold the settings of an invoker.
type invokerFlags struct {
	listen    string
	https     string
	tlsCert   string
	tlsKey    string
	apiHost   string
	domain    string
	mapped    string
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
	settings.Add(cmd, invokerSection, func(f *pflag.FlagSet) { i.flags(f) })
}

func (i *invokerFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&i.listen, "listen", "127.0.0.1:3233", "where the OpenWhisk API is served;"+
		" other than on loopback it takes only keys that were made here")
	f.StringVar(&i.https, "https", "",
		"where it is served by HTTPS as well, e.g. 0.0.0.0:3443 (default: nowhere)")
	f.StringVar(&i.tlsCert, "tls-cert", "",
		"certificate of HTTPS, which --listen and --https take, PEM (default: one that is"+
			" made at first start; clients must be told to trust it, as by `wsk -i`)")
	f.StringVar(&i.tlsKey, "tls-key", "", "its key, PEM")
	settings.TakesEffect(f, certificates, "tls-cert", "tls-key")
	f.StringVar(&i.apiHost, "api-host", "",
		"what functions get as __OW_API_HOST (default: http:// and the listen address)")
	f.StringVar(&i.domain, "domain", "localhost",
		"Knative services are at NAME.NAMESPACE. and this domain; names below localhost lead to"+
			" this machine")
	f.StringVar(&i.mapped, "mapped-domains", "",
		"users may give their Knative services names at and below these domains, comma-separated, by a"+
			" DomainMapping; *: any name, also one that the API is reached at (default: none)")
	f.StringVar(&i.name, "name", "",
		"what this invoker is called among those that share its store (default: as its host)")
	i.store.flags(f)
	f.StringVar(&i.storage, "storage", "", "where functions find a storage server, which keeps its"+
		" objects in --state-dir; whoever reaches it may read and write them all (default: nowhere)")
	f.StringVar(&i.runtimes, "runtimes", "",
		"a runtimes.json in OpenWhisk's format, whose stemCells are started ahead of calls (default:"+
			" the runtimes that `fastiov image` makes, none ahead)")
	settings.Check(f, isAddress, "listen", "https", "storage")
	i.limits = limitFlags(f, access.Defaults)
	f.DurationVar(&i.keepAlive, "keep-alive", 10*time.Minute,
		"how long a warm sandbox waits for another call")
	f.Var(chosen(&i.policy, "fixed", "histogram"), "keep-alive-policy",
		"fixed: every sandbox waits for --keep-alive; histogram: as long as its function's calls"+
			" have been apart, --keep-alive where they say nothing")
	f.DurationVar(&i.pause, "pause-after", 10*time.Second,
		"how long a warm sandbox waits before it is paused; 0: it never is")
	f.DurationVar(&i.wait, "wait", time.Minute,
		"how long a call queues for a sandbox before it is refused with the reason")
	f.DurationVar(&i.drain, "drain", 15*time.Second,
		"how long a stop waits for calls that run, and for callers who wait, before they are ended")
}

// storeFlags name what an invoker must not forget.
type storeFlags struct {
	where    string
	password string // the file that holds it
	retain   int
}

func (s *storeFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&s.where, "store", "", "where entities and activations are kept: a file, or"+
		" redis://host:port (default: invoker.db in --state-dir)")
	settings.Check(f, withoutPassword("store"), "store")
	f.StringVar(&s.password, "store-password-file", "", "the file with the password to --store")
	f.IntVar(&s.retain, "retain", 1024,
		"MiB of activation records to retain; the oldest are forgotten")
}

func (s *storeFlags) open(ctx context.Context, stateDir string,
	log *slog.Logger) (store.Store, error) {
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

// startWithin is longer than the deadlines of an agent's stages together. An agent that keeps to
// its own says which stage was late; this one is for an agent that does not answer at all.
const startWithin = 20 * time.Minute

// pool returns the rules by which the pool uses the nodes.
func (i *invokerFlags) pool() pool.Config {
	cfg := pool.Config{
		KeepAlive: i.keepAlive, PauseAfter: i.pause, Wait: i.wait, Start: startWithin,
	}
	if i.policy == "histogram" {
		cfg.Policy = pool.Histogram{Otherwise: i.keepAlive}
	}
	return cfg
}

// account returns the user of an invoker with a process of its own; empty: it has none.
func (i *invokerFlags) account(d *driver) string {
	if i.user == "" && d.root {
		return frontUser
	}
	return i.user
}

func (i *invokerFlags) host() string {
	if i.apiHost != "" {
		return i.apiHost
	}
	return "http://" + i.listen
}

// key returns the key that the invoker starts with: the well-known one only if every listener is on
// loopback.
func (i *invokerFlags) key(stateDir string) (openwhisk.Key, error) {
	if i.https == "" {
		return openwhisk.LoadKey(i.listen, keyFile(stateDir))
	}
	return openwhisk.LoadKey(i.listen, keyFile(stateDir), i.https)
}

func keyFile(stateDir string) string { return filepath.Join(stateDir, "key") }
