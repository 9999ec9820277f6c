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
		"no JSON":  {"/run", `{`, `{"error":"unexpected end of JSON input"}`, 400},
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
