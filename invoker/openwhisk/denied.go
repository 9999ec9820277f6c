package openwhisk

import (
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// denials logs keys that open nothing: where they are tried, at most once in a while, and how many
// there were since. It never shows a key.
type denials struct {
	mu     sync.Mutex
	told   time.Time
	untold int
}

// between is the shortest time between two lines that name an address.
const between = 10 * time.Second

func (d *denials) tell(log *slog.Logger, r *http.Request, why error, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.untold++; now.Sub(d.told) < between {
		return
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	log.Warn("a key was refused", "address", host, "reason", why, "refused", d.untold)
	d.told, d.untold = now, 0
}
