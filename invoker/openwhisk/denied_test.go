package openwhisk

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/invoker/access"
)

// Keys that open nothing are counted by where they were tried, and logged with that address, now
// and then, and never as they are.
func TestRefusedKeysAreCountedAndTold(t *testing.T) {
	c := newClient(t)
	var said bytes.Buffer
	c.api.cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
	c.putWeb("secret", `,{"key":"require-whisk-auth","value":true}`, "")
	wrong := *c
	wrong.key = access.Key{UUID: c.key.UUID, Secret: strings.Repeat("s", 64)}
	for range 5 {
		wrong.want(401, wrong.do("GET", "actions", ""))
	}
	c.want(403, c.do("GET", "/namespaces/others/actions", ""))
	c.want(401, c.web("GET", "guest/default/secret.json", ""))
	r := httptest.NewRequest("GET", "http://127.0.0.1/ui/feed", nil)
	if c.api.Admit(httptest.NewRecorder(), r) != nil {
		t.Error("nobody is let in")
	}
	for series, want := range map[string]float64{"401 api": 5, "403 api": 1, "401 web": 1,
		"401 page": 1, "403 web": 0} {
		if n := c.counted("fastiov_denied_requests_total " + series); n != want {
			t.Errorf("%s: %v, want %v", series, n, want)
		}
	}
	if text := said.String(); strings.Count(text, "a key was refused") != 1 ||
		!strings.Contains(text, "address=192.0.2.1 ") ||
		strings.Contains(text, wrong.key.Secret) || strings.Contains(text, wrong.key.UUID) {
		t.Errorf("log: %s", text)
	}
	c.api.denials.tell(c.api.cfg.Log, r, access.ErrUnknown, time.Now().Add(between))
	if text := said.String(); !strings.Contains(text, "refused=5") {
		t.Errorf("log: %s", text)
	}
}

func TestWhatAnInvokerHasIsCounted(t *testing.T) {
	c := newClient(t)
	for _, series := range []string{
		"fastiov_body_bytes held", "fastiov_connections open",
		"fastiov_refused_connections_total all",
		"fastiov_refused_connections_total address", "fastiov_lost_records_total",
		"fastiov_store_broken",
	} {
		if n := c.counted(series); n != 0 {
			t.Errorf("%s: %v", series, n)
		}
	}
	if n := c.counted("fastiov_body_bytes free"); n != 1<<30 {
		t.Errorf("%v bytes are free", n)
	}
}
