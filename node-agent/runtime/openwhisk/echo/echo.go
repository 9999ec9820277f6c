// Package echo is the runtime of sandboxes that run no function: it answers like an OpenWhisk
// container whose function returns its arguments. The bare and sim drivers use it, so that
// everything above them works unchanged.
//
// The arguments may ask for trouble: {"sleep_ms": 50} answers late, {"fail": true} with 502.
package echo

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Handler answers the requests of a runtime. Before a /run is answered, ran is told the status, and
// how many bytes the request had.
func Handler(ran func(status, length int)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		status, answer, late := Answer(r.URL.Path, body)
		if late > 0 {
			select {
			case <-time.After(late):
			case <-r.Context().Done():
				return
			}
		}
		if r.URL.Path == "/run" {
			ran(status, len(body))
		}
		w.WriteHeader(status)
		w.Write(answer)
	})
}

type request struct {
	Value jsontext.Value `json:"value"`
}

type trouble struct {
	SleepMS int  `json:"sleep_ms"`
	Fail    bool `json:"fail"`
}

// Answer answers one POST of body to path, and says how late the answer is to be.
func Answer(path string, body []byte) (status int, answer []byte, late time.Duration) {
	switch path {
	case "/init":
		return 200, []byte(`{"ok":true}`), 0
	case "/run":
		return run(body)
	}
	return 404, []byte(`{"error":"there is /init and /run"}`), 0
}

func run(body []byte) (status int, answer []byte, late time.Duration) {
	var r request
	if err := json.Unmarshal(body, &r); err != nil {
		return 400, fmt.Appendf(nil, `{"error":%q}`, err), 0
	}
	var asked trouble
	_ = json.Unmarshal(r.Value, &asked) // arguments of another shape ask for none
	late = time.Duration(max(asked.SleepMS, 0)) * time.Millisecond
	switch {
	case asked.Fail:
		return 502, []byte(`{"error":"the arguments asked for a failure"}`), late
	case r.Value == nil:
		return 200, []byte(`{}`), late
	}
	return 200, r.Value, late
}
