package echo

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		path, body, want string
		status           int
	}{
		"init":     {"/init", `{"value":{}}`, `{"ok":true}`, 200},
		"run":      {"/run", `{"value":{"a":[1]},"deadline":"7"}`, `{"a":[1]}`, 200},
		"array":    {"/run", `{"value":[1,2]}`, `[1,2]`, 200},
		"no value": {"/run", `{}`, `{}`, 200},
		"late":     {"/run", `{"value":{"sleep_ms":1}}`, `{"sleep_ms":1}`, 200},
		"fails":    {"/run", `{"value":{"fail":true}}`, `{"error":"the arguments asked for a failure"}`, 502},
		"no JSON":  {"/run", `{`, `{"error":"jsontext: unexpected EOF after offset 1"}`, 400},
		"no path":  {"/", ``, `{"error":"there is /init and /run"}`, 404},
	} {
		status, answer, err := Answer(c.path, []byte(c.body), func(d time.Duration) error { return Sleep(t.Context(), d) })
		if err != nil || status != c.status || string(answer) != c.want {
			t.Errorf("%s: %d %s %v, want %d %s", name, status, answer, err, c.status, c.want)
		}
	}
}

func TestACallerThatLeavesDoesNotWait(t *testing.T) {
	why := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, _, err := Answer("/run", []byte(`{"value":{"sleep_ms":3600000}}`), func(d time.Duration) error { return Sleep(ctx, d) }); !errors.Is(err, why) {
		t.Errorf("%v, want %v", err, why)
	}
}

func BenchmarkAnswer(b *testing.B) {
	body := []byte(`{"value":{"name":"you"},"namespace":"guest","action_name":"/guest/hello","action_version":"0.0.1","activation_id":"18ea20bce7beda43bd66d2d302aafce5","transaction_id":"18ea20bce7beda43bd66d2d302aafce5","deadline":"1795283485123"}`)
	b.ReportAllocs()
	for b.Loop() {
		if status, _, err := Answer("/run", body, nil); err != nil || status != 200 {
			b.Fatal(status, err)
		}
	}
}
