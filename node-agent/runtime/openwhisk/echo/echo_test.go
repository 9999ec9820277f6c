package echo

import (
	"testing"
	"time"
)

func TestAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		path, body, want string
		status           int
		late             time.Duration
	}{
		"init":     {"/init", `{"value":{}}`, `{"ok":true}`, 200, 0},
		"run":      {"/run", `{"value":{"a":[1]},"deadline":"7"}`, `{"a":[1]}`, 200, 0},
		"array":    {"/run", `{"value":[1,2]}`, `[1,2]`, 200, 0},
		"no value": {"/run", `{}`, `{}`, 200, 0},
		"late":     {"/run", `{"value":{"sleep_ms":1}}`, `{"sleep_ms":1}`, 200, time.Millisecond},
		"fails":    {"/run", `{"value":{"fail":true}}`, `{"error":"the arguments asked for a failure"}`, 502, 0},
		"no JSON":  {"/run", `{`, `{"error":"jsontext: unexpected EOF after offset 1"}`, 400, 0},
		"no path":  {"/", ``, `{"error":"there is /init and /run"}`, 404, 0},
	} {
		status, answer, late := Answer(c.path, []byte(c.body))
		if late != c.late || status != c.status || string(answer) != c.want {
			t.Errorf("%s: %d %s %v, want %d %s", name, status, answer, late, c.status, c.want)
		}
	}
}

func BenchmarkAnswer(b *testing.B) {
	body := []byte(`{"value":{"name":"you"},"namespace":"guest","action_name":"/guest/hello",` +
		`"action_version":"0.0.1","activation_id":"18ea20bce7beda43bd66d2d302aafce5",` +
		`"transaction_id":"18ea20bce7beda43bd66d2d302aafce5","deadline":"1795283485123"}`)
	b.ReportAllocs()
	for b.Loop() {
		if status, _, _ := Answer("/run", body); status != 200 {
			b.Fatal(status)
		}
	}
}
