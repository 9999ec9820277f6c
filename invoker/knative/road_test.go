package knative

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fastiov/fastiov/invoker/access"
)

// withHello returns a house with the service hello, which answers within a second, and its address.
func withHello(t *testing.T) (h *house, address string, leave func()) {
	t.Helper()
	return withHelloFor(t, 1)
}

// withHelloFor returns a house with a service whose requests may take so many seconds.
func withHelloFor(t *testing.T, seconds int) (h *house, address string, leave func()) {
	t.Helper()
	h, end := newHouse(t, filepath.Join(t.TempDir(), "store"), access.NewKey())
	server := httptest.NewUnstartedServer(h.http)
	server.Config.Protocols = &http.Protocols{}
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	h.must("POST", objects+"services", strings.Replace(described("hello", "example.com/hello"),
		`"containers"`, fmt.Sprintf(`"timeoutSeconds":%d,"containers"`, seconds), 1))
	h.ready("hello", "True")
	return h, server.Listener.Addr().String(), func() {
		end() // while clients are there
		server.Close()
	}
}

// says opens a connection to the service hello, and sends the text.
func says(t *testing.T, address, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	first, rest, _ := strings.Cut(text, "\n")
	if _, err := io.WriteString(conn, first+"\nHost: hello.ann.localhost\n"+rest); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestAClientThatStopsSendingIsAnswered(t *testing.T) {
	_, address, leave := withHello(t)
	defer leave()
	conn := says(t, address, "POST /sleep HTTP/1.1\nContent-Length: 100\n\n0123456789")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != http.StatusGatewayTimeout || !answer.Close {
		t.Errorf("it is answered %d, close: %t", answer.StatusCode, answer.Close)
	}
}

// A client that reads nothing keeps no pool from closing.
func TestAClientThatReadsNothingHoldsNoLease(t *testing.T) {
	_, address, leave := withHelloFor(t, 60)
	conn := says(t, address, "GET /flood HTTP/1.1\n\n")
	if _, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), nil); err != nil {
		t.Fatal(err)
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		leave()
	}()
	select {
	case <-left:
	case <-time.After(20 * time.Second):
		t.Fatal("the pool does not close")
	}
}

// Whoever breaks off what it sends ends no sandbox that serves others.
func TestABrokenRequestEndsNoSandbox(t *testing.T) {
	h, address, leave := withHelloFor(t, 60)
	defer leave()
	conn := says(t, address, "POST /sleep HTTP/1.1\nTransfer-Encoding: chunked\n\nzz\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || answer.StatusCode != http.StatusBadGateway {
		t.Fatalf("it is answered %v, %v", answer, err)
	}
	if code, said := h.curl("hello.ann.localhost", "/"); code != 200 {
		t.Errorf("the next request is answered %d %s", code, said)
	}
	if n := h.node.starts.Load(); n != 1 {
		t.Errorf("%d starts, want one", n)
	}
}

// A revision's timeout is for the whole of an answer, which ends with those words, as in Knative.
func TestAnAnswerEndsInTime(t *testing.T) {
	_, address, leave := withHelloFor(t, 3)
	defer leave()
	conn := says(t, address, "GET /flood HTTP/1.1\n\n")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	if err != nil || !strings.HasSuffix(string(text), "request timeout") {
		t.Errorf("%v, and the answer ends with %q", err, text[max(0, len(text)-40):])
	}
}

// A connection that the node refuses ends no sandbox that serves others.
func TestARefusedConnectionEndsNoSandbox(t *testing.T) {
	h, _, leave := withHelloFor(t, 60)
	defer leave()
	for _, code := range []codes.Code{codes.ResourceExhausted, codes.Unavailable} {
		h.node.refuse.Store(uint32(code))
		if code, said := h.curl("hello.ann.localhost", "/"); code < 500 {
			t.Errorf("it is answered %d %s", code, said)
		}
		h.node.refuse.Store(0)
		if code, said := h.curl("hello.ann.localhost", "/"); code != 200 {
			t.Errorf("the next request is answered %d %s", code, said)
		}
	}
	if n := h.node.starts.Load(); n != 1 {
		t.Errorf("%d starts, want one", n)
	}
}

// A WebSocket whose sandbox has ended gets another, as any request does.
func TestAnUpgradeIsTriedAgain(t *testing.T) {
	h, address, leave := withHelloFor(t, 60)
	defer leave()
	h.node.mu.Lock()
	clear(h.node.live)
	h.node.mu.Unlock()
	conn := says(t, address, "GET / HTTP/1.1\nConnection: upgrade\nUpgrade: websocket\n\n")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || answer.StatusCode != 200 || h.node.starts.Load() != 2 {
		t.Errorf("it is answered %v, %v, after %d starts", answer, err, h.node.starts.Load())
	}
}

// A program that answers nothing is replaced, though requests keep it warm.
func TestAMuteProgramIsReplaced(t *testing.T) {
	h, address, leave := withHelloFor(t, 60)
	defer leave()
	for n := range 10 {
		if h.node.starts.Load() != 1 {
			t.Errorf("it is replaced after %d requests", n)
		}
		text := "GET /mute HTTP/1.1\n\n"
		if n < 5 { // a broken request is its client's fault
			text = "POST /sleep HTTP/1.1\nTransfer-Encoding: chunked\n\nzz\r\n"
		}
		if _, err := http.ReadResponse(bufio.NewReader(says(t, address, text)), nil); err != nil {
			t.Fatal(err)
		}
	}
	code, said := h.curl("hello.ann.localhost", "/")
	if n := h.node.starts.Load(); code != 200 || n != 2 {
		t.Errorf("then a request is answered %d %s, after %d starts", code, said, n)
	}
}

// The same in HTTP/2, where another request of its connection goes on.
func TestAClientOfHTTP2ThatReadsNothingHoldsNoLease(t *testing.T) {
	_, address, leave := withHelloFor(t, 60)
	second := &http.Protocols{}
	second.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: second}}
	defer client.CloseIdleConnections()
	ask := func(path string) *http.Response {
		r, err := http.NewRequest(http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "hello.ann.localhost"
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	unread := ask("/flood")
	defer unread.Body.Close()
	answer := ask("/")
	defer answer.Body.Close()
	if said, err := io.ReadAll(answer.Body); err != nil || answer.ProtoMajor != 2 ||
		answer.StatusCode != http.StatusOK {
		t.Errorf("the other is answered %s %s, %v", answer.Status, said, err)
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		leave()
	}()
	select {
	case <-left:
	case <-time.After(20 * time.Second):
		t.Fatal("the pool does not close")
	}
}

// A program that answers one of two requests at once is good, however many of the others end.
func TestAProgramThatAnswersOthersIsNotReplaced(t *testing.T) {
	h, address, leave := withHelloFor(t, 15)
	defer leave()
	var waiting []net.Conn
	for range 10 {
		waiting = append(waiting, says(t, address, "GET /sleep HTTP/1.1\n\n"))
	}
	for late := time.Now().Add(15 * time.Second); h.node.asleep.Load() < 10; {
		if time.Now().After(late) {
			t.Fatalf("%d requests have come", h.node.asleep.Load())
		}
		time.Sleep(time.Millisecond)
	}
	if code, said := h.curl("hello.ann.localhost", "/"); code != 200 {
		t.Errorf("%d %s", code, said)
	}
	for _, conn := range waiting {
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || answer.StatusCode != http.StatusGatewayTimeout {
			t.Fatalf("%+v, %v", answer, err)
		}
	}
	h.curl("hello.ann.localhost", "/")
	if n := h.node.starts.Load(); n != 1 {
		t.Errorf("it is replaced: %d starts", n)
	}
}

// A request that never reached the program says nothing of it: here its Upgrade is one that HTTP
// does not know, or HTTP/2 not.
func TestARequestThatIsNotSentEndsNoSandbox(t *testing.T) {
	h, _, leave := withHelloFor(t, 60)
	defer leave()
	h.must("POST", objects+"services", strings.Replace(described("second", "example.com/second"),
		`"containerPort"`, `"name":"h2c","containerPort"`, 1))
	h.ready("second", "True")
	for _, host := range []string{"hello", "second"} {
		upgrade := "é"
		if host == "second" {
			upgrade = "websocket"
		}
		for range 7 {
			r := httptest.NewRequest("GET", "http://"+host+".ann.localhost/", nil)
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", upgrade)
			w := httptest.NewRecorder()
			h.http.ServeHTTP(w, r)
			if w.Code != http.StatusBadGateway {
				t.Errorf("it is answered %d %s", w.Code, w.Body)
			}
		}
	}
	if n := h.node.starts.Load(); n != 2 {
		t.Errorf("%d starts of two services", n)
	}
}

// A program that reads nothing of a body, however large, is replaced; one whose client sends no
// more is not.
func TestAProgramThatReadsNothingIsReplaced(t *testing.T) {
	h, address, leave := withHelloFor(t, 3)
	defer leave()
	ask := func(text string, body int) {
		t.Helper()
		var all sync.WaitGroup
		for range 5 {
			conn := says(t, address, text)
			all.Go(func() { _, _ = conn.Write(make([]byte, body)) })
			all.Go(func() {
				answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil || answer.StatusCode != http.StatusGatewayTimeout {
					t.Errorf("%+v, %v", answer, err)
				}
				conn.Close()
			})
		}
		all.Wait()
		h.curl("hello.ann.localhost", "/")
	}
	ask("POST /deaf HTTP/1.1\nContent-Length: 9000000\n\n", 1000)
	if n := h.node.starts.Load(); n != 1 {
		t.Errorf("%d starts, and the clients sent no more", n)
	}
	ask("POST /deaf HTTP/1.1\nContent-Length: 9000000\n\n", 9_000_000)
	if n := h.node.starts.Load(); n != 2 {
		t.Errorf("%d starts after five that the program read nothing of", n)
	}
}

// Web actions are OpenWhisk's, whatever token they are sent.
func TestWebActionsAreNotOurs(t *testing.T) {
	for path, want := range map[string]bool{
		"/api/v1/web/ann/default/hello": false, "/api/v1/namespaces": true, "/api/v1": true,
	} {
		r := httptest.NewRequest("GET", "http://127.0.0.1"+path, nil)
		r.Header.Set("Authorization", "Bearer token")
		if got := kubernetesClient(r); got != want {
			t.Errorf("%s: %t", path, got)
		}
	}
}

// What is forwarded is said by the standard's header too, but for a client that says it itself.
func TestForwarded(t *testing.T) {
	for _, c := range []struct{ by, host, proto, said, want string }{
		{"192.0.2.7", "a.example.com", "http", "", "for=192.0.2.7;host=a.example.com;proto=http"},
		{"2001:db8::1, 192.0.2.7", "a:80", "https", "",
			`for="[2001:db8::1]";host="a:80";proto=https, for=192.0.2.7`},
		{"192.0.2.7", "a", "http", "for=192.0.2.9", "for=192.0.2.9"},
		{"", "a", "http", "", ""},
	} {
		h := http.Header{}
		for name, value := range map[string]string{"X-Forwarded-For": c.by,
			"X-Forwarded-Host": c.host, "X-Forwarded-Proto": c.proto, "Forwarded": c.said} {
			if value != "" {
				h.Set(name, value)
			}
		}
		if forwarded(h); h.Get("Forwarded") != c.want {
			t.Errorf("%+v: %q", c, h.Get("Forwarded"))
		}
	}
}
