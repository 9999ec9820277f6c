package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// server answers Status and nothing else.
type server struct{ UnimplementedNodeServer }

func (server) Status(context.Context, *StatusRequest) (*StatusReply, error) {
	return &StatusReply{Version: "test"}, nil
}

// An authority signs certificates for 127.0.0.1.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.cert, a.key = a.sign("ca", template)
	return a
}

func (a *authority) sign(name string, template *x509.Certificate) (*x509.Certificate,
	*ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	template.Subject = pkix.Name{CommonName: name}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".pem", "CERTIFICATE", der)
	a.write(name+".key", "EC PRIVATE KEY", secret)
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

func (a *authority) write(name, kind string, content []byte) {
	if err := os.WriteFile(filepath.Join(a.dir, name),
		pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// keys returns those of a new certificate, for a peer that trusts that other authority.
func (a *authority) keys(name string, trusts *authority) *Keys {
	a.t.Helper()
	a.sign(name, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	})
	return &Keys{Cert: filepath.Join(a.dir, name+".pem"), Key: filepath.Join(a.dir, name+".key"),
		CA: filepath.Join(trusts.dir, "ca.pem")}
}

// A served is this package's server, or gRPC's alone, as an earlier version's was.
type served interface {
	Serve(net.Listener) error
	Stop()
}

func serve(t *testing.T, network, address string, s served) string {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String()
}

func ask(t *testing.T, address string, keys *Keys) error {
	t.Helper()
	client, hangUp, err := Dial(address, keys)
	if err != nil {
		return err
	}
	defer hangUp()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	reply, err := client.Status(ctx, &StatusRequest{})
	if err == nil && reply.Version != "test" {
		t.Errorf("%+v", reply)
	}
	return err
}

func TestOverTCPBothSidesShowWhoTheyAre(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	s, err := NewTLSServer(server{}, ours.keys("node", ours), silent)
	if err != nil {
		t.Fatal(err)
	}
	address := serve(t, "tcp", "127.0.0.1:0", s)
	if err := ask(t, address, ours.keys("invoker", ours)); err != nil {
		t.Errorf("an invoker of ours: %v", err)
	}
	if err := ask(t, address, theirs.keys("stranger",
		ours)); status.Code(err) != codes.Unavailable {
		t.Errorf("a stranger who trusts us: %v", err)
	}
	if err := ask(t, address, ours.keys("invoker", theirs)); status.Code(err) != codes.Unavailable {
		t.Errorf("an invoker who does not trust the node: %v", err)
	}
	if err := ask(t, address, nil); err == nil {
		t.Error("an invoker without a certificate was let in")
	}
}

// TestRenewedKeysAreTaken: at each connection both sides read their files anew. Each shows the
// certificate and trusts the authorities that it finds there.
func TestRenewedKeysAreTaken(t *testing.T) {
	ours, next := newAuthority(t), newAuthority(t)
	keys, mine := ours.keys("node", ours), ours.keys("invoker", ours)
	s, err := NewTLSServer(server{}, keys, silent)
	if err != nil {
		t.Fatal(err)
	}
	address := serve(t, "tcp", "127.0.0.1:0", s)
	client, hangUp, err := Dial(address, mine)
	if err != nil {
		t.Fatal(err)
	}
	defer hangUp()
	replace(t, keys, next.keys("node", next))
	replace(t, mine, next.keys("invoker", next))
	if _, err := client.Status(t.Context(), &StatusRequest{}); err != nil {
		t.Errorf("by the renewed certificates: %v", err)
	}
	if err := ask(t, address, next.keys("invoker", next)); err != nil {
		t.Errorf("an invoker of the new authority: %v", err)
	}
	if err := os.WriteFile(keys.Cert, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ask(t, address, mine); err != nil {
		t.Errorf("while a certificate is being replaced: %v", err)
	}
}

// replace puts the files of other keys in the place of those of keys.
func replace(t *testing.T, keys, other *Keys) {
	t.Helper()
	for from, to := range map[string]string{other.Cert: keys.Cert, other.Key: keys.Key,
		other.CA: keys.CA} {
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestKeysThatAreNone(t *testing.T) {
	ours := newAuthority(t)
	good := ours.keys("node", ours)
	for name, keys := range map[string]*Keys{
		"none":          {},
		"no such file":  {Cert: "/nonexistent", Key: good.Key, CA: good.CA},
		"CA is no cert": {Cert: good.Cert, Key: good.Key, CA: good.Key},
		"no CA":         {Cert: good.Cert, Key: good.Key},
	} {
		if _, err := NewTLSServer(server{}, keys, silent); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestByUnixSocketAndInProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.sock")
	serve(t, "unix", path, quiet(server{}))
	if err := ask(t, path, nil); err != nil {
		t.Error(err)
	}
	local := Local(server{})
	if reply, err := local.Status(t.Context(), &StatusRequest{}); err != nil ||
		reply.Version != "test" {
		t.Errorf("%v, %v", reply, err)
	}
	for name, call := range map[string]func() error{
		"start": func() error { _, err := local.Start(t.Context(), &StartRequest{}); return err },
		"init":  func() error { _, err := local.Init(t.Context(), &InitRequest{}); return err },
		"run":   func() error { _, err := local.Run(t.Context(), &RunRequest{}); return err },
		"pause": func() error { _, err := local.Pause(t.Context(), &PauseRequest{}); return err },
		"publish": func() error {
			_, err := local.Publish(t.Context(), &PublishRequest{})
			return err
		},
		"resume": func() error {
			_, err := local.Resume(t.Context(), &ResumeRequest{})
			return err
		},
		"stop": func() error { _, err := local.Stop(t.Context(), &StopRequest{}); return err },
		"starts": func() error {
			_, err := local.Starts(t.Context(), &StartsRequest{})
			return err
		},
		"drain": func() error { _, err := local.Drain(t.Context(), &DrainRequest{}); return err },
		"report": func() error {
			_, err := local.Report(t.Context(), &ReportRequest{})
			return err
		},
	} {
		if err := call(); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: the server's own answer did not come: %v", name, err)
		}
	}
}

// late reports how long a run may take, in milliseconds.
type late struct{ UnimplementedNodeServer }

func (late) Run(ctx context.Context, _ *RunRequest) (*RunReply, error) {
	deadline, bounded := ctx.Deadline()
	if !bounded {
		return &RunReply{}, nil
	}
	return &RunReply{Status: int32(time.Until(deadline).Milliseconds())}, nil
}

// Over a stream the node is told by a message; of a call of its own it knows the deadline.
func TestARunIsGivenUpSomeTimeAfterItsLimit(t *testing.T) {
	calledOneByOne := grpc.NewServer()
	RegisterNodeServer(calledOneByOne, late{})
	client := dialed(t, serve(t, "unix", filepath.Join(t.TempDir(), "socket"), calledOneByOne))
	for _, c := range []struct{ limit, least, most int32 }{{0, 0, 0},
		{3_600_000, 3_600_000, 3_610_000}} {
		run := &RunRequest{TimeoutMs: uint32(c.limit)}
		reply, err := client.Run(t.Context(), run)
		if err != nil || reply.Status < c.least || reply.Status > c.most {
			t.Errorf("with a limit of %d ms: %v ms left, %v", c.limit, reply, err)
		}
		ctx, cancel := bounded(t.Context(), run)
		defer cancel()
		if reply, _ := (late{}).Run(ctx, run); reply.Status < c.least || reply.Status > c.most {
			t.Errorf("with a limit of %d ms, a stream's caller waits %d ms", c.limit, reply.Status)
		}
	}
}

func TestAServerSaysThatItServes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.sock")
	serve(t, "unix", path, quiet(server{}))
	conn, err := grpc.NewClient("unix:"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	reply, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || reply.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("%v, %v", reply, err)
	}
}

// handing is a node with VFs to hand out.
type handing struct{ server }

func (handing) Devices() DevicesServer { return handed{} }

type handed struct{ UnimplementedDevicesServer }

func (handed) Lease(context.Context, *LeaseRequest) (*LeaseReply, error) {
	return &LeaseReply{}, nil
}

// VFs are handed out to this machine alone: another one could not use them, and has no say here.
func TestDevicesAreServedOnTheSocketAlone(t *testing.T) {
	ours := newAuthority(t)
	far, err := NewTLSServer(handing{}, ours.keys("node", ours), silent)
	if err != nil {
		t.Fatal(err)
	}
	address := serve(t, "tcp", "127.0.0.1:0", far)
	secure, err := ours.keys("other", ours).credentials()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(secure))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = NewDevicesClient(conn).Lease(t.Context(), &LeaseRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("over TCP: %v", err)
	}
	socket := serve(t, "unix", filepath.Join(t.TempDir(), "socket"), quiet(handing{}))
	devices, hangUp, err := DialDevices(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer hangUp()
	if _, err := devices.Lease(t.Context(), &LeaseRequest{}); err != nil {
		t.Errorf("on the socket: %v", err)
	}
}

func TestWhatOthersHoldIsNoRoomForSandboxes(t *testing.T) {
	status := &StatusReply{Vfs: []*VF{
		{State: "idle"}, {State: "leased"}, {State: "leased", Kind: "sandbox"},
		{State: "quarantined"}, {State: "leased", Kind: "pod"}, {State: "leased", Kind: "device"},
		{State: "gone"},
	}}
	if n := status.SoundVFs(); n != 3 {
		t.Errorf("sandboxes can have %d VFs, want 3", n)
	}
}

// A node whose sandboxes take nothing.
type full struct{ UnimplementedNodeServer }

func (full) Connect(stream grpc.BidiStreamingServer[ConnectRequest, ConnectReply]) error {
	<-stream.Context().Done()
	return nil
}

// What nobody takes is not sent to a node without end: there may be as many streams as connections
// into sandboxes.
func TestOneStreamHoldsBack(t *testing.T) {
	socket := serve(t, "unix", filepath.Join(t.TempDir(), "socket"), quiet(full{}))
	client, hangUp, err := Dial(socket, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer hangUp()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := client.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(2*time.Second, cancel)
	sent := 0
	for chunk := make([]byte, 64<<10); ; sent += len(chunk) {
		if err := stream.Send(&ConnectRequest{Data: chunk}); err != nil {
			break
		}
	}
	if sent > 2<<20 {
		t.Errorf("%d bytes are on their way", sent)
	}
}

// A user who connects again and again fills no log.
func TestConnectionsTooManyAreLoggedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		d := newDoor(slog.New(slog.NewTextHandler(&log, nil)))
		refused := func(n int) string {
			log.Reset()
			for range n {
				if d.enter(&visitor{door: d}) {
					t.Error("a connection too many")
				}
			}
			return log.String()
		}
		for range mostConns {
			d.enter(&visitor{door: d})
		}
		if said := refused(1000); !strings.HasSuffix(said, " closed=1\n") {
			t.Errorf("at first: %q", said)
		}
		time.Sleep(silence)
		if said := refused(1); !strings.HasSuffix(said, " closed=1000\n") {
			t.Errorf("later: %q", said)
		}
	})
}
