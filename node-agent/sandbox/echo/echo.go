// Package echo is the runtime of sandboxes that run no function: it answers like an OpenWhisk container whose function returns its
// arguments. The bare and sim drivers use it, so that everything above them works unchanged.
//
// The arguments may ask for trouble: {"sleep_ms": 50} answers late, {"fail": true} with 502.
package echo

import (
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

type request struct {
	Value jsontext.Value `json:"value"`
}

type trouble struct {
	SleepMS int  `json:"sleep_ms"`
	Fail    bool `json:"fail"`
}

// Answer answers one POST of body to path. Where the answer is to be late, it sleeps first; an error of sleep is its own.
func Answer(path string, body []byte, sleep func(time.Duration) error) (status int, answer []byte, err error) {
	switch path {
	case "/init":
		return 200, []byte(`{"ok":true}`), nil
	case "/run":
		return run(body, sleep)
	}
	return 404, []byte(`{"error":"there is /init and /run"}`), nil
}

func run(body []byte, sleep func(time.Duration) error) (int, []byte, error) {
	var r request
	if err := json.Unmarshal(body, &r); err != nil {
		return 400, fmt.Appendf(nil, `{"error":%q}`, err), nil
	}
	var asked trouble
	_ = json.Unmarshal(r.Value, &asked) // arguments of another shape ask for none
	if asked.SleepMS > 0 {
		if err := sleep(time.Duration(asked.SleepMS) * time.Millisecond); err != nil {
			return 0, nil, err
		}
	}
	switch {
	case asked.Fail:
		return 502, []byte(`{"error":"the arguments asked for a failure"}`), nil
	case r.Value == nil:
		return 200, []byte(`{}`), nil
	}
	return 200, r.Value, nil
}

// Sleep sleeps for d, or until ctx ends, whose cause is then its error.
func Sleep(ctx context.Context, d time.Duration) error {
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-late.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
