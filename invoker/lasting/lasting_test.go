package lasting

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// An answer may be silent for longer than its reader may take for a part of it; and a reader that
// takes nothing ends it.
func TestAnAnswerMayBeSilent(t *testing.T) {
	const within = 2 * time.Second
	ended := make(chan error, 2)
	server := httptest.NewUnstartedServer(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			a := Begin(w, within)
			defer a.Limit()
			say := func() error {
				_, err := io.WriteString(w, "a")
				return err
			}
			if r.URL.Path == "/silent" {
				_ = a.Send(say)
				time.Sleep(within + within/4)
				_ = a.Send(say)
				return
			}
			for {
				err := a.Send(func() error {
					_, err := w.Write(make([]byte, 1<<20))
					return err
				})
				if err != nil {
					ended <- err
					return
				}
			}
		}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	one := &http.Transport{TLSClientConfig: server.Client().Transport.(*http.Transport).
		TLSClientConfig.Clone(), Protocols: &http.Protocols{}}
	one.Protocols.SetHTTP1(true)
	one.TLSClientConfig.NextProtos = nil
	defer one.CloseIdleConnections()
	for version, by := range map[int]http.RoundTripper{1: one, 2: server.Client().Transport} {
		client := &http.Client{Transport: by}
		answer, err := client.Get(server.URL + "/silent")
		if err != nil {
			t.Fatal(err)
		}
		said, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || string(said) != "aa" || answer.ProtoMajor != version {
			t.Errorf("HTTP/%d: %q by %s, %v", version, said, answer.Proto, err)
		}
		answer, err = client.Get(server.URL + "/endless")
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Errorf("HTTP/%d: who takes nothing keeps its answer", version)
		}
		answer.Body.Close()
	}
}
