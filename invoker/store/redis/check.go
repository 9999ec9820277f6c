package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// format is the version of the keys and their contents.
const format = "1"

// check returns why this Redis cannot be the store, or nil.
func (s *Store) check(ctx context.Context) error {
	if err := s.db.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("%w; is it running, and is this its address?", err)
	}
	settings := map[string]string{}
	for _, pattern := range []string{"*append*", "maxmemory*"} {
		some, err := s.db.ConfigGet(ctx, pattern).Result()
		if err != nil {
			s.log.Warn(
				"Redis does not tell its settings; without appendonly yes, appendfsync always and noeviction it may lose what was promised",
				"redis", s.where, "reason", err)
			break
		}
		for name, value := range some {
			settings[name] = value
		}
	}
	if err := judge(settings); err != nil {
		return err
	}
	found, err := s.db.SetArgs(ctx, formatKey, format,
		redis.SetArgs{Mode: "NX", Get: true}).Result()
	if errors.Is(err, redis.Nil) || err == nil && found == format {
		return nil
	}
	if err == nil {
		err = fmt.Errorf(
			"%s is %q, this version reads %s; use the fastiov that wrote it, or another database",
			formatKey, found, format)
	}
	return err
}

// judge returns an error for the first setting that would break promises. It accepts settings that
// it does not know.
func judge(settings map[string]string) error {
	for _, need := range []struct{ name, value, otherwise string }{
		{"appendonly", "yes", "a restart would forget everything"},
		{"appendfsync", "always", "a crash would forget what was promised last"},
		{"no-appendfsync-on-rewrite", "no", "a crash would forget what was promised last"},
	} {
		if found, known := settings[need.name]; known && found != need.value {
			return fmt.Errorf("%s is %s, and %s; do CONFIG SET %s %s",
				need.name, found, need.otherwise, need.name, need.value)
		}
	}
	policy := settings["maxmemory-policy"]
	if limit := settings["maxmemory"]; limit != "" && limit != "0" &&
		!strings.EqualFold(policy, "noeviction") {
		return fmt.Errorf(
			"maxmemory-policy is %s, and promises would be thrown away; do CONFIG SET maxmemory-policy noeviction",
			policy)
	}
	return nil
}
