// Package echo is the runtime of sandboxes that run no function: it answers like an OpenWhisk container whose function returns its
// arguments. The bare and sim drivers use it, so that everything above them works unchanged.
//
// The arguments may ask for trouble: {"sleep_ms": 50} answers late, {"fail": true} with 502.
package echo

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

type request struct {
	Value json.RawMessage `json:"value"`
}

type trouble struct {
	SleepMS int  `json:"sleep_ms"`
	Fail    bool `json:"fail"`
}

// Answer answers one POST of body to path. It returns early, with an error, if ctx ends.
func Answer(ctx context.Context, path string, body []byte) (status int, answer []byte, err error) {
	switch path {
	case "/init":
		return 200, []byte(`{"ok":true}`), nil
	case "/run":
		return run(ctx, body)
	}
	return 404, []byte(`{"error":"there is /init and /run"}`), nil
}

func run(ctx context.Context, body []byte) (int, []byte, error) {
	var r request
	if err := json.Unmarshal(body, &r); err != nil {
		return 400, fmt.Appendf(nil, `{"error":%q}`, err), nil
	}
	var asked trouble
	_ = json.Unmarshal(r.Value, &asked) // arguments of another shape ask for none
	if asked.SleepMS > 0 {
		late := time.NewTimer(time.Duration(asked.SleepMS) * time.Millisecond)
		defer late.Stop()
		select {
		case <-late.C:
		case <-ctx.Done():
			return 0, nil, context.Cause(ctx)
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
