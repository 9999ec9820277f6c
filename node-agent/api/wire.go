package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
)

// maxMessage bounds a message: 48 MB of action code as base64, and room for its envelope.
const maxMessage = 80 << 20

// window bounds the bytes that may be under way on a connection and not read yet. A fixed one
// spares the pings that would measure it: one for each few messages.
const window = 16 << 20

// streamWindow bounds them for one stream, where nobody may take what comes. It grows for a message
// that is longer, while its reader waits.
const streamWindow = MostData

// silence bounds how long a peer that owes an answer may say nothing. Then it is asked whether it
// is there, and hung up on.
const silence = 10 * time.Second

// again sets when a node that is away is looked for again: a node that is back is used soon after.
var again = grpc.ConnectParams{
	Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
		MaxDelay: 2 * time.Second},
	MinConnectTimeout: silence,
}

// grace is the time that a node may take to report a run that used up its time.
const grace = 10 * time.Second

// Keys names the files by which the two ends of a connection over TCP know each other: each shows
// its certificate, and takes the other's only if CA has signed it. Each new connection uses what
// the files hold then. While they do not fit together, as between the writing of two of them, the
// last that did serves.
type Keys struct {
	Cert, Key, CA string
	Log           *slog.Logger // of renewed files that cannot be used; nil: slog's default

	mu   sync.Mutex
	last credentials.TransportCredentials // nil until the files have fitted together
	told string                           // why they cannot be used, as logged; "" where they can
}

// Dial returns a client of the node at address: host:port, or the path of a Unix socket, where the
// right to open it is the authentication, and keys may be nil. It does not wait for the node to
// answer.
func Dial(address string, keys *Keys) (node NodeClient, hangUp func(), err error) {
	secure, target, socket := insecure.NewCredentials(), "unix:"+address, address
	if !isPath(address) {
		target, socket = "dns:///"+address, ""
		var err error
		if secure, err = cmp.Or(keys, new(Keys)).credentials(); err != nil {
			return nil, nil, fmt.Errorf("node %s: %w", address, err)
		}
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(secure),
		grpc.WithUnaryInterceptor(boundRun), grpc.WithConnectParams(again),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: silence, Timeout: silence}),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage),
			grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return nil, nil, fmt.Errorf("node %s: %w", address, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &client{NodeClient: NewNodeClient(conn), ctx: ctx, socket: socket}, func() {
		cancel()
		conn.Close()
	}, nil
}

// DialDevices returns a client of the VFs of the node with that Unix socket.
func DialDevices(socket string) (devices DevicesClient, hangUp func(), err error) {
	local := grpc.WithTransportCredentials(insecure.NewCredentials())
	conn, err := grpc.NewClient("unix:"+socket, local)
	if err != nil {
		return nil, nil, fmt.Errorf("node %s: %w", socket, err)
	}
	return NewDevicesClient(conn), func() { conn.Close() }, nil
}

// boundRun ends a run that its node has forgotten to end.
func boundRun(ctx context.Context, method string, in, out any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if run, is := in.(*RunRequest); is {
		var cancel context.CancelFunc
		ctx, cancel = bounded(ctx, run)
		defer cancel()
	}
	return invoke(ctx, method, in, out, conn, options...)
}

func bounded(ctx context.Context, run *RunRequest) (context.Context, context.CancelFunc) {
	if run.TimeoutMs == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(run.TimeoutMs)*time.Millisecond+grace)
}

func isPath(address string) bool { return strings.Contains(address, "/") }

// NewServer returns a server of node for Unix sockets. If node has a method Devices, its VFs are
// handed out there too, and nowhere else: they can only be used on this machine.
func NewServer(node NodeServer, log *slog.Logger) *Server {
	socket := newSocket(node, log)
	server := newServer(node, socket.budget, grpc.Creds(socket))
	if d, has := node.(interface{ Devices() DevicesServer }); has {
		RegisterDevicesServer(server, d.Devices())
	}
	return serverOf(server, &socket.serving, log)
}

// NewTLSServer returns a server of node for TCP, which takes no client without a certificate that
// keys.CA has signed.
func NewTLSServer(node NodeServer, keys *Keys, log *slog.Logger) (*Server, error) {
	keys.Log = cmp.Or(keys.Log, log)
	secure, err := keys.credentials()
	if err != nil {
		return nil, err
	}
	return serverOf(newServer(node, newBudget(), grpc.Creds(guarded{secure})),
		new(sync.WaitGroup), log), nil
}

func newServer(node NodeServer, budget *budget, options ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(append(options, grpc.WaitForHandlers(true),
		grpc.ConnectionTimeout(silence),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(window),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: silence, Timeout: silence}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: silence / 2}))...)
	RegisterNodeServer(server, streaming{node, budget})
	healthpb.RegisterHealthServer(server, healthOf(node))
	return server
}

// healthOf returns node's own health server, or else one that says that it serves.
func healthOf(node NodeServer) healthpb.HealthServer {
	if h, says := node.(interface{ Health() *health.Server }); says {
		return h.Health()
	}
	return health.NewServer()
}

// renewing holds credentials that follow the files of keys.
type renewing struct {
	credentials.TransportCredentials // of the keys as they were at first: its protocol
	keys                             *Keys
}

func (k *Keys) credentials() (credentials.TransportCredentials, error) {
	first, err := k.now()
	if err != nil {
		return nil, err
	}
	return &renewing{first, k}, nil
}

// now returns credentials of what the files hold, or held when they last fitted together.
func (k *Keys) now() (credentials.TransportCredentials, error) {
	config, err := k.config()
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err == nil:
		k.last = credentials.NewTLS(config)
	case k.last == nil:
		return nil, err
	}
	k.tell(err)
	return k.last, nil
}

// tell logs why the files cannot be used when that changes, and that they can be used again.
func (k *Keys) tell(err error) {
	says := ""
	if err != nil {
		says = err.Error()
	}
	if says == k.told {
		return
	}
	k.told = says
	log := cmp.Or(k.Log, slog.Default())
	if err != nil {
		log.Error("renewed keys of the node API cannot be used; the former ones serve", "err", err)
	} else {
		log.Info("renewed keys of the node API are used")
	}
}

func (r *renewing) ClientHandshake(ctx context.Context, authority string,
	raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	now, err := r.keys.now()
	if err != nil {
		return nil, nil, err
	}
	return now.ClientHandshake(ctx, authority, raw)
}

func (r *renewing) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	now, err := r.keys.now()
	if err != nil {
		return nil, nil, err
	}
	return now.ServerHandshake(raw)
}

func (r *renewing) Clone() credentials.TransportCredentials { return r }

// config reads the files, for either side.
func (k *Keys) config() (*tls.Config, error) {
	if k.Cert == "" || k.Key == "" || k.CA == "" {
		return nil, errors.New(
			"the node API over TCP needs a certificate, its key and the CA of the other side: --node-cert, --node-key, --node-ca")
	}
	own, err := tls.LoadX509KeyPair(k.Cert, k.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate of the node API: %w", err)
	}
	text, err := os.ReadFile(k.CA)
	if err != nil {
		return nil, fmt.Errorf("CA of the node API: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("CA of the node API: %s holds no certificate in PEM", k.CA)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{own}, RootCAs: pool,
		ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	}, nil
}
