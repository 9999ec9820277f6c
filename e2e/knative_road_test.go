//go:build knative

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"

	"github.com/fastiov/fastiov/node-agent/api"
)

// What HTTP/1.1 can carry goes both ways whole, whether the sandbox is there or started for it.
func TestRequestsAreCarriedWhole(t *testing.T) {
	k := newKnative(t)
	for _, c := range []struct {
		name string
		ask  func(t *testing.T, k *knative, host string)
	}{
		{"events", takeEvents}, {"trailers", sendTrailers},
		{"websocket", talk}, {"large", sendMuch},
	} {
		host := k.create(fromZero(service(c.name, "example.com/whole"))).Status.URL.Host
		for _, state := range []string{"cold", "warm"} {
			t.Run(c.name+" "+state, func(t *testing.T) { c.ask(t, k, host) })
		}
	}
	if got := k.sandboxes(); got != 4 {
		t.Errorf("%d sandboxes for 4 services", got)
	}
}

// HTTP/2 and calls of gRPC, without TLS and over it, are as if the program were asked itself,
// whether it speaks HTTP/2 or not, and whether the sandbox is there or started for them.
func TestHTTP2IsCarriedWhole(t *testing.T) {
	k := newKnative(t)
	for name, ask := range map[string]func(*testing.T, dialer, string) string{
		"h2c": speakHTTP2, "grpc": callGRPC,
		"h2-tls": speakHTTP2, "grpc-tls": callGRPC,
	} {
		for _, port := range []string{"h2c", "http1"} {
			if strings.HasPrefix(name, "grpc") && port == "http1" {
				continue // no program of HTTP/1.1 answers gRPC
			}
			s := fromZero(service(name+"-"+port, "example.com/whole"))
			s.Spec.Template.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: port}}
			host := k.create(s).Status.URL.Host
			road := func(ctx context.Context, _ string) (net.Conn, error) {
				if strings.HasSuffix(name, "tls") {
					return k.secured(ctx, host, "h2")
				}
				return new(net.Dialer).DialContext(ctx, "tcp", k.address)
			}
			cold := ask(t, road, host)
			direct := ask(t, k.last(), host)
			if warm := ask(t, road, host); cold != direct || warm != direct {
				t.Errorf("%s %s:\ncold   %s\nwarm   %s\ndirect %s", name, port, cold, warm, direct)
			}
			const want = "sim: GET / of "
			if code, said := k.curl("http://" + host); code != 200 ||
				!strings.HasPrefix(said, want) {
				t.Errorf("a GET of HTTP/1.1 to a program of %s is answered %d %q", port, code, said)
			}
			if said := curlSecured(t, k, host); !strings.HasPrefix(said, want) ||
				!strings.HasSuffix(said, " by 2") {
				t.Errorf("curl, of a program of %s: %q", port, said)
			}
		}
	}
}

// curlSecured has curl get a service's page by HTTPS, and returns that and the version of HTTP.
func curlSecured(t *testing.T, k *knative, host string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "curl", "-sSk", "--connect-to", "::"+k.address,
		"-w", " by %{http_version}", "https://"+host).CombinedOutput()
	if err != nil {
		t.Errorf("curl: %v %s", err, out)
	}
	return string(out)
}

// secured returns a connection by TLS, in which that protocol is spoken.
func (k *knative) secured(ctx context.Context, host, protocol string) (net.Conn, error) {
	name, _, _ := strings.Cut(host, ":")
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, ServerName: name,
		NextProtos: []string{protocol}}}).DialContext(ctx, "tcp", k.address)
	if err == nil && conn.(*tls.Conn).ConnectionState().NegotiatedProtocol != protocol {
		err = errors.Join(fmt.Errorf("%s is not spoken over TLS", protocol), conn.Close())
	}
	return conn, err
}

type dialer = func(ctx context.Context, address string) (net.Conn, error)

// last returns what connects to the sandbox that was started last.
func (k *knative) last() dialer {
	k.t.Helper()
	node, hangUp, err := api.Dial(filepath.Join(k.run(), "node.sock"), nil)
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(hangUp)
	status, err := node.Status(k.t.Context(), &api.StatusRequest{})
	if err != nil || len(status.Sandboxes) == 0 {
		k.t.Fatalf("%v %v", status, err)
	}
	last := slices.MaxFunc(status.Sandboxes, func(a, b *api.Sandbox) int {
		return cmp.Compare(a.StartedNs, b.StartedNs)
	})
	return func(ctx context.Context, _ string) (net.Conn, error) {
		return api.Connect(context.WithoutCancel(ctx), node, last.Id, 8080)
	}
}

// speakHTTP2 sends a body by halves, the second when the first has come back, and returns all that
// was answered.
func speakHTTP2(t *testing.T, dial dialer, host string) string {
	t.Helper()
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{Protocols: protocols,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return dial(ctx, address)
		}}}
	defer client.CloseIdleConnections()
	from, to := io.Pipe()
	r, err := http.NewRequest(http.MethodPost, "http://"+host, from)
	if err != nil {
		t.Fatal(err)
	}
	r.Trailer = http.Header{"X-Sum": {"42"}}
	go io.WriteString(to, "first")
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	first := make([]byte, len("first"))
	if _, err := io.ReadFull(answer.Body, first); err != nil {
		t.Fatal(err)
	}
	go func() {
		io.WriteString(to, " second")
		to.Close()
	}()
	rest, err := io.ReadAll(answer.Body)
	if err != nil || answer.ProtoMajor != 2 || answer.Trailer.Get("X-Sum") != "42" {
		t.Errorf("%s %v %v", answer.Proto, answer.Trailer, err)
	}
	return fmt.Sprint(answer.Status, string(first), string(rest), answer.Trailer)
}

// callGRPC sends some messages, each when the one before has come back.
func callGRPC(t *testing.T, dial dialer, host string) (said string) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+host, grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(plainly{})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	call, err := conn.NewStream(t.Context(),
		&grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/a.Program/Talks")
	if err != nil {
		t.Fatal(err)
	}
	for _, sent := range []string{"one", "two", strings.Repeat("x", 100_000)} {
		var came string
		if err := call.SendMsg(&sent); err != nil {
			t.Fatal(err)
		}
		if err := call.RecvMsg(&came); err != nil {
			t.Fatal(err)
		}
		said += came
	}
	if err := call.CloseSend(); err != nil {
		t.Fatal(err)
	}
	var none string
	if err := call.RecvMsg(&none); err != io.EOF {
		t.Errorf("it ends with %v", err)
	}
	return fmt.Sprint(said, call.Trailer())
}

// plainly is a codec whose messages are texts.
type plainly struct{}

func (plainly) Name() string                    { return "text" }
func (plainly) Marshal(v any) ([]byte, error)   { return []byte(*v.(*string)), nil }
func (plainly) Unmarshal(b []byte, v any) error { *v.(*string) = string(b); return nil }

func (k *knative) client() *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", k.address)
		}}}
}

func takeEvents(t *testing.T, k *knative, host string) {
	answer, err := k.client().Get("http://" + host + "/events?n=3")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.Header.Get("Content-Type") != "text/event-stream" ||
		strings.Count(string(text), "data:") != 3 {
		t.Errorf("%s %q %v", answer.Header, text, err)
	}
}

func sendTrailers(t *testing.T, k *knative, host string) {
	r, err := http.NewRequest(http.MethodPost, "http://"+host, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Trailer = http.Header{"X-Sum": nil}
	r.Body = &summed{Reader: strings.NewReader("some text"), of: r}
	answer, err := k.client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || string(text) != "some text" || answer.Trailer.Get("X-Sum") != "9" {
		t.Errorf("%q %v %v", text, answer.Trailer, err)
	}
}

// A summed body fills in the request's trailer as it ends.
type summed struct {
	io.Reader
	of *http.Request
	n  int
}

func (s *summed) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if s.n += n; err == io.EOF {
		s.of.Trailer.Set("X-Sum", fmt.Sprint(s.n))
	}
	return n, err
}

func (*summed) Close() error { return nil }

func talk(t *testing.T, k *knative, host string) {
	config, err := websocket.NewConfig("ws://"+host+"/", "http://"+host)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := net.Dial("tcp", k.address)
	if err != nil {
		t.Fatal(err)
	}
	secured, err := k.secured(t.Context(), host, "http/1.1")
	if err != nil {
		t.Fatal(err)
	}
	for _, conn := range []net.Conn{plain, secured} {
		echo(t, config, conn)
	}
}

// echo has what is said come back over a WebSocket.
func echo(t *testing.T, config *websocket.Config, conn net.Conn) {
	t.Helper()
	defer conn.Close()
	ws, err := websocket.NewClient(config, conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, said := range []string{"one", "two"} {
		var heard string
		if err := errors.Join(websocket.Message.Send(ws, said),
			websocket.Message.Receive(ws, &heard)); err != nil || heard != said {
			t.Errorf("%q for %q: %v", heard, said, err)
		}
	}
}

func sendMuch(t *testing.T, k *knative, host string) {
	much := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	answer, err := k.client().Post("http://"+host, "application/octet-stream",
		bytes.NewReader(much))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || !bytes.Equal(text, much) {
		t.Errorf("%d bytes for %d: %v", len(text), len(much), err)
	}
}
