// Package open opens the store that an address names.
package open

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/embedded"
	"github.com/fastiov/fastiov/invoker/store/redis"
)

// Store opens the store that where names: a path for the embedded store in that file, or redis://…,
// rediss:// or unix://… for a Redis. It retains the newest activation records, as many as fit in
// about retain bytes.
func Store(ctx context.Context, where string, retain int64, log *slog.Logger) (store.Store, error) {
	scheme, _, isURL := strings.Cut(where, "://")
	switch {
	case where == "":
		return nil, fmt.Errorf("no store is named: name a file, or redis://host:port")
	case !isURL:
		return opened(embedded.Open(where, retain, log))
	case scheme == "redis" || scheme == "rediss" || scheme == "unix":
		return opened(redis.Open(ctx, where, retain, log))
	default:
		return nil, fmt.Errorf("a store is a file, redis://, rediss:// or unix://, not %s://",
			scheme)
	}
}

// opened returns a nil interface if there is an error, so that a nil *Store never looks like a
// store.
func opened[S store.Store](s S, err error) (store.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}
