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

// Store opens the embedded store in the file, or the Redis, that where names: a path, redis://…, rediss://… or unix://…. Of the activation
// records, the newest are retained, as many as fit in about retain bytes.
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
		return nil, fmt.Errorf("a store is a file, redis://, rediss:// or unix://, not %s://", scheme)
	}
}

// opened keeps a store that is none from looking like one.
func opened[S store.Store](s S, err error) (store.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}
