package echo

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/net/websocket"
)

// start serves a program over HTTP/1.1 and HTTP/2 without TLS, and returns its address.
func start(t *testing.T) (address string, logged func() string) {
	var lines strings.Builder
	server := httptest.NewUnstartedServer(&Program{
		Env: map[string]string{"K_SERVICE": "hello"},
		Log: func(line string) { fmt.Fprintln(&lines, line) },
	})
	server.Config.Protocols = &http.Protocols{}
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String(), func() string { server.Close(); return lines.String() }
}

func TestWhatIsAsked(t *testing.T) {
	address, logged := start(t)
	for path, want := range map[string]string{
		"/":                            "200 sim: GET / of " + address + "\n",
		"/gone?status=404":             "404 sim: GET /gone of " + address + "\n",
		"/late?sleep=1ms&status=70000": "200 sim: GET /late of " + address + "\n",
		"/env":                         "200 {\"K_SERVICE\":\"hello\"}\n",
		"/events?n=2":                  "200 data: 0\n\ndata: 1\n\n",
	} {
		reply, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(reply.Body)
		reply.Body.Close()
		if got := fmt.Sprint(reply.StatusCode, " ", string(body)); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if got := logged(); !strings.Contains(got, "sim: HTTP/1.1 GET /gone answered 404\n") {
		t.Error(got)
	}
}

// In both protocols, each line comes back before the next is sent, and the trailers come last.
func TestABodyComesBackAsItComes(t *testing.T) {
	address, _ := start(t)
	for _, version := range []int{1, 2} {
		transport := &http.Transport{Protocols: &http.Protocols{}}
		transport.Protocols.SetHTTP1(version == 1)
		transport.Protocols.SetUnencryptedHTTP2(version == 2)
		defer transport.CloseIdleConnections()
		said, say := io.Pipe()
		request, err := http.NewRequest("POST", "http://"+address+"/talk", said)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/grpc+test")
		request.Trailer = http.Header{"X-Last": nil}
		reply, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		heard := bufio.NewReader(reply.Body)
		for i := range 3 {
			fmt.Fprintln(say, i)
			if line, err := heard.ReadString('\n'); err != nil || line != fmt.Sprintln(i) {
				t.Fatal(line, err)
			}
		}
		request.Trailer.Set("X-Last", "word")
		say.Close()
		rest, err := io.ReadAll(heard)
		if err != nil || len(rest) > 0 || reply.ProtoMajor != version ||
			reply.Trailer.Get("X-Last") != "word" || reply.Trailer.Get("Grpc-Status") != "0" {
			t.Errorf("HTTP/%d: %q, %v, %v", reply.ProtoMajor, rest, err, reply.Trailer)
		}
	}
}

func TestAWebSocketSpeaksBack(t *testing.T) {
	address, _ := start(t)
	ws, err := websocket.Dial("ws://"+address+"/ws", "", "http://"+address)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	var text string
	var binary []byte
	if websocket.Message.Send(ws, "hello"); websocket.Message.Receive(ws, &text) != nil ||
		text != "hello" {
		t.Error(text)
	}
	websocket.Message.Send(ws, []byte{0, 255})
	if websocket.Message.Receive(ws, &binary) != nil || string(binary) != "\x00\xff" {
		t.Error(binary)
	}
}
