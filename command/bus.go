package command

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fastiov/fastiov/command/settings"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/couch"
	"github.com/fastiov/fastiov/invoker/openwhisk/bus/message"
	"github.com/fastiov/fastiov/invoker/pool"
	"github.com/fastiov/fastiov/node-agent/api"
)

// busFlags say which OpenWhisk cluster an invoker joins, instead of serving an API of its own.
type busFlags struct {
	kafka    string
	keys     busKeys
	couchdb  string
	password string // the file that holds it
	instance int
	prefix   string
	events   bool
}

func (b *busFlags) register(cmd *cobra.Command) { settings.Add(cmd, clusterSection, b.flags) }

func (b *busFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&b.kafka, "bus", "", "join the OpenWhisk cluster with these brokers,"+
		" kafka://HOST:PORT[,HOST:PORT…], or kafkas:// by TLS, instead of serving an API")
	f.StringVar(&b.keys.ca, "bus-ca", "", "with kafkas: CA that the brokers' certificates must be"+
		" signed by, PEM (default: those that this machine trusts)")
	f.StringVar(&b.keys.cert, "bus-cert", "",
		"with kafkas: certificate to show to the brokers, PEM (default: none)")
	f.StringVar(&b.keys.key, "bus-key", "", "with kafkas: its key, PEM")
	f.StringVar(&b.couchdb, "couchdb", "", "with --bus: the cluster's CouchDB and the prefix of"+
		" its databases, http://USER@HOST:PORT/PREFIX")
	settings.Check(f, withoutPassword("couchdb"), "couchdb")
	f.StringVar(&b.password, "couchdb-password-file", "", "the file with the password to --couchdb")
	f.IntVar(&b.instance, "invoker-id", -1,
		"with --bus: the N of invokerN, which nobody else in the cluster has")
	f.StringVar(&b.prefix, "topic-prefix", "",
		"with --bus: what the cluster puts before the names of its topics")
	f.BoolVar(&b.events, "user-events", false,
		"with --bus: tell the topic events what each activation took")
}

func (b *busFlags) wanted() bool { return b.kafka != "" }

// parse checks the settings before anything is asked.
func (b *busFlags) parse() (cfg bus.Config, db couch.Config, err error) {
	scheme, hosts, _ := strings.Cut(b.kafka, "://")
	switch {
	case hosts == "" || scheme != "kafka" && scheme != "kafkas":
		return cfg, db, errors.New(
			"--bus must be kafka://HOST:PORT[,HOST:PORT…], or kafkas:// for TLS")
	case scheme == "kafkas":
		if cfg.TLS, err = b.keys.config(); err != nil {
			return cfg, db, err
		}
	case b.keys != (busKeys{}):
		return cfg, db, fmt.Errorf(
			"--bus-ca, --bus-cert and --bus-key are for TLS; --bus must be kafkas://%s for that",
			hosts)
	}
	for host := range strings.SplitSeq(strings.TrimSuffix(hosts, "/"), ",") {
		if _, port, err := net.SplitHostPort(host); err != nil || port == "" {
			return cfg, db, errors.New("--bus has a broker that is not HOST:PORT")
		}
		cfg.Brokers = append(cfg.Brokers, host)
	}
	if b.instance < 0 {
		return cfg, db, fmt.Errorf(
			"--bus needs --invoker-id: the number by which the controllers know this invoker, counted from 0")
	}
	where, err := withPassword("couchdb", b.couchdb, b.password)
	if err != nil {
		return cfg, db, err
	}
	at, err := url.Parse(where)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return cfg, db, errors.New("--bus needs --couchdb http://USER@HOST:PORT/PREFIX")
	}
	user := at.User
	at.User = nil
	password, _ := user.Password()
	cfg.Prefix, cfg.Events = b.prefix, b.events
	return cfg, couch.Config{URL: at, User: user.Username(), Password: password}, nil
}

// busKeys names the files by which the two ends of a connection to a broker know each other.
type busKeys struct{ ca, cert, key string }

func (k *busKeys) config() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if k.ca != "" {
		text, err := os.ReadFile(k.ca)
		if err != nil {
			return nil, fmt.Errorf("--bus-ca: %w", err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--bus-ca: %s holds no certificate in PEM", k.ca)
		}
	}
	if k.cert != "" || k.key != "" {
		own, err := tls.LoadX509KeyPair(k.cert, k.key)
		if err != nil {
			return nil, fmt.Errorf("--bus-cert and --bus-key: %w", err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}

// serve is the life of an invoker in a cluster, over a pool of these nodes.
func (b *busFlags) serve(
	ctx context.Context, nodes []api.NodeClient, sandboxes *pool.Pool, apiHost string,
	registry prometheus.Registerer, log *slog.Logger,
) error {
	cfg, dbCfg, err := b.parse()
	if err != nil {
		return err
	}
	memory := 0
	cfg.Room = roomOf(nodes)
	if cfg.Slots, memory, err = cfg.Room(ctx); err != nil {
		return err
	}
	if cfg.Slots == 0 {
		return errors.New(
			"the nodes can hold no sandbox; `fastiov status` shows their memory and VFs")
	}
	cfg.Log, cfg.Invoker = log, message.NewInvoker(b.instance, memory)
	db := couch.New(dbCfg)
	defer db.Close()
	member, err := bus.Join(ctx, cfg, db, &bus.OnPool{Pool: sandboxes, Image: nodeImage,
		APIHost: apiHost})
	if err != nil {
		return err
	}
	registry.MustRegister(member)
	log.Info("joined the cluster", "invoker", cfg.Invoker, "brokers", cfg.Brokers,
		"slots", cfg.Slots, "memory", cfg.Invoker.UserMemory)
	tellParent(ready)
	return member.Serve(ctx)
}

// roomOf returns a function that adds up the room of all nodes.
func roomOf(nodes []api.NodeClient) bus.Room {
	return func(ctx context.Context) (slots, memoryMB int, err error) {
		for _, node := range nodes {
			st, err := node.Status(ctx, &api.StatusRequest{})
			if err != nil {
				return 0, 0, err
			}
			holds, offers := room(st)
			if holds == 0 {
				continue // its VFs are quarantined, perhaps
			}
			slots, memoryMB = slots+holds, memoryMB+offers
		}
		return slots, memoryMB, nil
	}
}

// room returns how many of the smallest actions the node can hold, and the memory that it offers
// its controllers. They count in memory and know nothing of VFs, so the offer is as many actions of
// OpenWhisk's default size as the node can really hold.
func room(st *api.StatusReply) (slots, memoryMB int) {
	const smallest, usual = 128, 256
	fit := func(each int) int {
		n := int(st.MemoryMib) / (each + int(st.OverheadMib))
		if len(st.Vfs) == 0 {
			return n
		}
		return min(n, st.SoundVFs())
	}
	return fit(smallest), max(fit(usual)*usual, smallest)
}

// nodeImage returns the node's image for an action. A cluster knows more versions of a language
// than a node has images; the node's runs them all.
func nodeImage(exec couch.Exec) (string, error) {
	family, _, _ := strings.Cut(exec.Kind, ":")
	switch family {
	case "blackbox":
		return exec.Image, nil
	case "nodejs":
		return "nodejs:18", nil
	case "python":
		if exec.Kind == "python:3-ai" {
			return exec.Kind, nil
		}
		return "python:3", nil
	}
	return "", fmt.Errorf("this invoker has no runtime for kind %s", exec.Kind)
}
