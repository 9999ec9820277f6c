package controlplane

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/openwhisk"
)

func TestThePlainHandlerChecksTheKeyAndAnswersWithTheBody(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = ServePlain(l) }()
	t.Cleanup(func() { l.Close() })
	key, err := openwhisk.LoadKey("127.0.0.1:0", "")
	if err != nil {
		t.Fatal(err)
	}
	for sent, want := range map[string]int{
		key.String(): http.StatusOK, "who:knows": http.StatusUnauthorized,
	} {
		c, err := dial(t.Context(), l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // over one connection
			if _, err := c.Write(request(sent, "POST", "actions/a?blocking=true",
				`{"name":"you"}`)); err != nil {
				t.Fatal(err)
			}
			status, body, err := c.answer()
			if err != nil || status != want ||
				want == http.StatusOK && string(body) != `{"name":"you"}`+"\n" {
				t.Errorf("%d %q %v, want %d", status, body, err, want)
			}
		}
		c.close()
	}
}

func TestALoadCountsWhatItSends(t *testing.T) {
	var served atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if served.Add(1)%10 == 0 {
			http.Error(w, "every tenth", http.StatusTooManyRequests)
		}
	}))
	t.Cleanup(server.Close)
	l := load{strings.TrimPrefix(server.URL, "http://"), 3, http.StatusOK,
		always(request("a:b", "GET", "", ""))}
	all, err := l.times(t.Context(), 100)
	if err != nil || all.answered != 90 || all.failed != 10 ||
		!strings.Contains(all.example, "HTTP 429: every tenth") {
		t.Errorf("%+v %v", all, err)
	}
	all, latencies, err := l.at(t.Context(), 1000, 100*time.Millisecond)
	if err != nil || all.answered+all.failed != 100 || len(latencies) != 100 {
		t.Errorf("%+v, %d latencies, %v", all, len(latencies), err)
	}
}

func TestAnAnswerThatIsNoneIsAnError(t *testing.T) {
	for _, answer := range []string{
		"", "HTTP\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
	} {
		c := connection{answers: bufio.NewReader(strings.NewReader(answer))}
		if status, body, err := c.answer(); err == nil {
			t.Errorf("%q: %d %q", answer, status, body)
		}
	}
}

func TestRequestsInShares(t *testing.T) {
	next := shared([][]byte{{0}, {1}, {2}, {3}, {4}}, 2)
	for conn, want := range []string{"[2 4 0 2]", "[3 1 3 1]"} {
		var got []byte
		for range 4 {
			got = append(got, next(conn)[0])
		}
		if fmt.Sprint(got) != want {
			t.Errorf("connection %d sends %v, want %s", conn, got, want)
		}
	}
}

func TestAServerThatEndsIsSaid(t *testing.T) {
	b := Bench{Command: "/bin/sh"}
	_, err := b.serve(context.Background(), func(string, string) []string {
		return []string{"-c", "echo first >&2; echo the last word >&2"}
	})
	if err == nil || !strings.Contains(err.Error(), "the last word") {
		t.Errorf("%v", err)
	}
}

func TestWhatAProcessUses(t *testing.T) {
	cpu, err := cpuOf(os.Getpid())
	if err != nil || cpu < 0 || cpu > time.Hour {
		t.Errorf("%v %v", cpu, err)
	}
}
