package openwhisk

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fastiov/fastiov/invoker/openwhisk/activation"
	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/embedded"
	"github.com/fastiov/fastiov/invoker/store/redis"
	"github.com/fastiov/fastiov/invoker/store/redis/redistest"
)

// former loads testdata/former, written by the version before the store knew records by an index
// alone: a file, the keys of a Redis, and the records in both as that version showed them, newest
// first.
func former(t *testing.T, name string) []byte {
	t.Helper()
	packed, err := os.ReadFile(filepath.Join("testdata/former", name+".gz"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestAFileOfAFormerVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	if err := os.WriteFile(path, former(t, "store"), 0o600); err != nil {
		t.Fatal(err)
	}
	readsFormer(t, func() (store.Store, error) {
		return embedded.Open(path, 1<<30, slog.New(slog.DiscardHandler))
	})
}

func TestARedisOfAFormerVersion(t *testing.T) {
	server := redistest.Start(t)
	var keys []struct {
		Key    string
		Text   []byte
		Hash   map[string][]byte
		Sorted []struct {
			Member []byte
			Score  float64
		}
		Stream []struct {
			ID     string
			Values map[string]any
		}
	}
	if err := json.Unmarshal(former(t, "redis.json"), &keys); err != nil {
		t.Fatal(err)
	}
	_, err := server.Admin.Pipelined(t.Context(), func(p goredis.Pipeliner) error {
		for _, k := range keys {
			if k.Text != nil {
				p.Set(t.Context(), k.Key, k.Text, 0)
			}
			for field, value := range k.Hash {
				p.HSet(t.Context(), k.Key, field, value)
			}
			for _, z := range k.Sorted {
				p.ZAdd(t.Context(), k.Key, goredis.Z{Score: z.Score, Member: z.Member})
			}
			for _, entry := range k.Stream {
				p.XAdd(t.Context(), &goredis.XAddArgs{Stream: k.Key, ID: entry.ID,
					Values: entry.Values})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	readsFormer(t, func() (store.Store, error) {
		return redis.Open(t.Context(), server.URL(), 1<<30, slog.New(slog.DiscardHandler))
	})
}

// readsFormer reads what the former version kept, adds to it, and reads all of it again.
func readsFormer(t *testing.T, open func() (store.Store, error)) {
	var want map[string][]string
	if err := json.Unmarshal(former(t, "records.json"), &want); err != nil {
		t.Fatal(err)
	}
	added := 0
	for again := range 2 {
		s, err := open()
		if err != nil {
			t.Fatal(err)
		}
		for namespace, records := range want {
			var got []string
			all := store.Filter{Namespace: namespace}
			err := s.List(t.Context(), all, added, 100, func(body []byte) error {
				var r activation.Record
				err := r.UnmarshalBinary(body)
				got = append(got, string(r.AppendJSON(nil)))
				return err
			})
			if !slices.Equal(got, records) || err != nil {
				t.Errorf("opened %d times, %s: %d records (%v), want %d:\n%.1000q,\n%.1000q",
					again+1, namespace, len(got), err, len(records), got, records)
			}
			for _, filter := range []store.Filter{all, {Namespace: namespace, Name: "pkg/hello"}} {
				n, err := s.Count(t.Context(), filter)
				want := len(records) + added
				if filter.Name != "" {
					want = len(records) / 5
				}
				if n != want || err != nil {
					t.Errorf("%+v: %d (%v), want %d", filter, n, err, want)
				}
			}
		}
		unfinished, err := s.Unfinished(t.Context(), "me")
		if err != nil || len(unfinished) != 2 || unfinished[0].Sent || !unfinished[1].Sent {
			t.Errorf("promised are %+v (%v)", unfinished, err)
		}
		newest := want["guest"][0]
		_, id, _ := strings.Cut(newest, `"activationId":"`)
		if r, err := recordIn(t, s, id[:32]); err != nil || string(r.AppendJSON(nil)) != newest {
			t.Errorf("%.32s: %+v (%v)", id, r, err)
		}
		if again == 0 {
			for namespace := range want {
				r := activation.Record{
					ID: store.NewID(), Namespace: namespace, Name: "new",
					Start: unfinished[0].At.AddDate(1, 0, 0),
				}
				s.Finish(r.Kept())
			}
			added++
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
