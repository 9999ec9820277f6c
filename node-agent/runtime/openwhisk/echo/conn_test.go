package echo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func none(int, int) {}

// TestAnyHTTPClientIsAnswered: net/http's, which sends what it likes.
func TestAnyHTTPClientIsAnswered(t *testing.T) {
	ran := 0
	dial := func(context.Context, string, string) (net.Conn, error) {
		return Dial(t.Context(), func(status, length int) { ran += status }), nil
	}
	transport := &http.Transport{DialContext: dial}
	client := http.Client{Transport: transport}
	defer client.CloseIdleConnections()
	value := `{"value":{"a":"` + strings.Repeat("x", 100_000) + `"}}`
	for _, c := range []struct {
		path, body, want string
		status           int
	}{
		{"/init", "{}", `{"ok":true}`, 200},
		{"/run", value, value[len(`{"value":`) : len(value)-1], 200},
		{"/run", `{"value":{"sleep_ms":1}}`, `{"sleep_ms":1}`, 200},
		{"/", "", `{"error":"there is /init and /run"}`, 404},
	} {
		for _, chunked := range []bool{true, false} {
			var body io.Reader = strings.NewReader(c.body)
			if chunked {
				body = io.MultiReader(body)
			}
			response, err := client.Post("http://runtime"+c.path, "application/json", body)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err != nil || response.StatusCode != c.status || string(answer) != c.want {
				t.Errorf("%s: %d, %.40q, %v", c.path, response.StatusCode, answer, err)
			}
		}
	}
	if ran != 4*200 {
		t.Errorf("%d were told of 4 runs", ran)
	}
}

func TestRequestsInOnePieceOrMany(t *testing.T) {
	const text = "POST /run HTTP/1.1\r\nContent-Length: 11\r\n\r\n{\"value\":1}"
	for size := 1; size <= 2*len(text); size++ {
		c := Dial(t.Context(), none)
		for rest := text + text; rest != ""; {
			n := min(size, len(rest))
			if _, err := io.WriteString(c, rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		c.(*conn).CloseWrite()
		answers := bufio.NewReader(c)
		for range 2 {
			response, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatalf("in pieces of %d bytes: %v", size, err)
			}
			if answer, err := io.ReadAll(response.Body); err != nil || string(answer) != "1" {
				t.Errorf("in pieces of %d bytes: %q, %v", size, answer, err)
			}
		}
		if _, err := answers.ReadByte(); err != io.EOF {
			t.Errorf("after both answers: %v", err)
		}
		c.Close()
	}
}

func TestWhatEndsARead(t *testing.T) {
	for name, end := range map[string]struct {
		by   func(c net.Conn, kill func())
		want error
	}{
		"its close":              {func(c net.Conn, _ func()) { c.Close() }, net.ErrClosed},
		"the end of its sandbox": {func(_ net.Conn, kill func()) { kill() }, errEnded},
		"its deadline": {func(c net.Conn, _ func()) {
			c.SetDeadline(time.Now().Add(time.Second))
		}, os.ErrDeadlineExceeded},
	} {
		synctest.Test(t, func(t *testing.T) {
			life, kill := context.WithCancel(t.Context())
			defer kill()
			c := Dial(life, none)
			defer c.Close()
			const body = `{"value":{"sleep_ms":100000}}`
			fmt.Fprintf(c, "POST /run HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			read := make(chan error)
			go func() {
				_, err := c.Read(make([]byte, 1))
				read <- err
			}()
			synctest.Wait()
			end.by(c, kill)
			if err := <-read; !errors.Is(err, end.want) {
				t.Errorf("%s: %v, want %v", name, err, end.want)
			}
		})
	}
}

// Who asks without end and reads nothing is not listened to any more.
func TestAnswersThatNobodyReadsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Dial(t.Context(), none)
		wrote := make(chan error)
		go func() {
			request := strings.Repeat("GET / HTTP/1.1\r\n\r\n", 100)
			for {
				if _, err := io.WriteString(c, request); err != nil {
					wrote <- err
					return
				}
			}
		}()
		synctest.Wait()
		if unread := c.(*conn).answers.Len(); unread > 2*mostUnread {
			t.Errorf("%d bytes are unread", unread)
		}
		c.Close()
		<-wrote
	})
}

func FuzzConn(f *testing.F) {
	f.Add([]byte("POST /run HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"))
	f.Add([]byte("POST /run HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" +
		"2\r\n{}\r\n0\r\n\r\nGET / HTTP/1.0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, said []byte) {
		c := Dial(t.Context(), none)
		defer c.Close()
		c.Write(said)
		c.(*conn).CloseWrite()
		c.SetDeadline(time.Now().Add(time.Second))
		io.Copy(io.Discard, c)
	})
}
