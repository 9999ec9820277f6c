package access

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fastiov/fastiov/invoker/store"
	"github.com/fastiov/fastiov/invoker/store/embedded"
)

func known(t testing.TB, d *Directory, s *Subject) {
	t.Helper()
	if err := d.Add(s); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyTheSecretOpens(t *testing.T) {
	d := NewDirectory(Limits{})
	key, other := NewKey(), NewKey()
	known(t, d, &Subject{Name: "ann", Namespaces: []Namespace{key.Owned("a"), other.Owned("b")}})
	for _, k := range []Key{{key.UUID, other.Secret}, {other.UUID, key.Secret}, {"", ""},
		{key.UUID, ""}, {key.UUID, key.Secret[:63]}} {
		if _, err := d.Identify(k.UUID, k.Secret); !errors.Is(err, ErrUnknown) {
			t.Errorf("%v: %v", k, err)
		}
	}
	id, err := d.Identify(other.UUID, other.Secret)
	if err != nil || id.Namespace != "b" || id.Subject != "ann" || id.Limits != Defaults {
		t.Errorf("%+v, %v", id, err)
	}
	if owner, err := d.Owner("a"); err != nil || owner.UUID != key.UUID {
		t.Errorf("%+v, %v", owner, err)
	}
	if _, err := d.Owner("c"); err == nil {
		t.Error("a namespace that is not there has an owner")
	}
	if len(key.Secret) != 64 || strings.Contains(key.Secret, ":") {
		t.Errorf("secret %q", key.Secret)
	}
}

func TestADirectoryFollowsItsStore(t *testing.T) {
	d := NewDirectory(Limits{"concurrentInvocations": 7})
	old, fresh := NewKey(), NewKey()
	see := func(revision uint64, s *Subject) {
		t.Helper()
		doc := store.Doc{Key: storeKey("ann"), Revision: revision}
		if s != nil {
			var err error
			if doc.Body, err = json.Marshal(s); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.See(doc); err != nil {
			t.Fatal(err)
		}
	}
	see(1, &Subject{Namespaces: []Namespace{old.Owned("a")}, Limits: Limits{"firesPerMinute": 5}})
	before, err := d.Identify(old.UUID, old.Secret)
	if err != nil ||
		before.Limits != (Limits{"concurrentInvocations": 7, "firesPerMinute": 5}).Over(Defaults) {
		t.Fatalf("%+v, %v", before, err)
	}
	see(2, &Subject{Namespaces: []Namespace{fresh.Owned("a")}})
	if _, err := d.Identify(old.UUID, old.Secret); !errors.Is(err, ErrUnknown) {
		t.Errorf("the old key: %v", err)
	}
	after, err := d.Identify(fresh.UUID, fresh.Secret)
	if err != nil || after.Usage != before.Usage {
		t.Errorf("%v; a change of the key forgot what the namespace uses", err)
	}
	see(3, &Subject{Namespaces: []Namespace{fresh.Owned("a")}, Blocked: true})
	if _, err := d.Identify(fresh.UUID, fresh.Secret); !errors.Is(err, ErrBlocked) {
		t.Errorf("blocked: %v", err)
	}
	see(4, nil)
	if _, err := d.Identify(fresh.UUID, fresh.Secret); !errors.Is(err, ErrUnknown) ||
		len(d.List()) != 0 {
		t.Errorf("deleted: %v", err)
	}
	for _, body := range []string{`{`, `{"namespaces":[{"name":"a","uuid":"u","sha256":"00"}]}`,
		`{"namespaces":[{"name":"a","uuid":"u","sha256":"zz"}]}`} {
		if err := d.See(store.Doc{Key: storeKey("bob"), Body: []byte(body)}); err == nil {
			t.Errorf("%s was taken", body)
		}
	}
	if err := d.See(store.Doc{Key: store.Key{Kind: store.Actions}, Body: []byte("{")}); err != nil {
		t.Error(err)
	}
}

// Within one minute of the clock, as many calls pass as are allowed; the next minute begins at 0.
func TestRates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(0, 5).Draw(t, "limit")
		now := time.Unix(rapid.Int64Range(0, 1<<31).Draw(t, "begin"), 0)
		var r rate
		passed := map[int64]int{}
		for range rapid.IntRange(1, 40).Draw(t, "calls") {
			now = now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "pause")) * time.Second)
			minute := now.Unix() / 60
			_, ok := r.add(now, limit)
			if ok != (passed[minute] < limit) {
				t.Fatalf("minute %d: %d of %d have passed, the next: %v",
					minute, passed[minute], limit, ok)
			}
			if ok {
				passed[minute]++
			}
		}
	})
}

func TestThrottlesSayWhichLimit(t *testing.T) {
	now := time.Unix(120, 0)
	limits := Allowance{InvocationsPerMinute: 3, ConcurrentInvocations: 2, FiresPerMinute: 1}
	var u Usage
	says := func(err error, want string) {
		t.Helper()
		var many *TooMany
		if want == "" && err != nil ||
			want != "" && (!errors.As(err, &many) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	says(u.Call(now, limits), "")
	says(u.Call(now, limits), "")
	says(u.Call(now, limits), "concurrent")
	u.Done()
	u.Done()
	says(u.Call(now, limits), "in this minute")
	says(u.Call(now.Add(time.Minute), limits), "")
	says(u.Fire(now, limits), "")
	says(u.Fire(now, limits), "fired")
	limits.ChangesPerMinute, limits.ReadsPerMinute = 1, 2
	says(u.Change(now, limits), "")
	says(u.Change(now, limits), "changes of entities")
	says(u.Read(now, limits), "")
	says(u.Read(now, limits), "")
	says(u.Read(now, limits), "too many reads")
}

func TestConcurrencyIsExactUnderLoad(t *testing.T) {
	var u Usage
	var all sync.WaitGroup
	var most, passed int
	var mu sync.Mutex
	limits := Allowance{InvocationsPerMinute: 600, ConcurrentInvocations: 3}
	for range 8 {
		all.Go(func() {
			for range 100 {
				if u.Call(time.Unix(0, 0), limits) != nil {
					continue
				}
				mu.Lock()
				passed++
				most = max(most, int(u.underWay.Load()))
				mu.Unlock()
				u.Done()
			}
		})
	}
	all.Wait()
	if passed > 600 || u.underWay.Load() != 0 {
		t.Errorf("%d passed, %d under way, at most %d", passed, u.underWay.Load(), most)
	}
}

// register returns a Register over a store in a file.
func register(t *testing.T) (*Register, *Directory) {
	t.Helper()
	s, err := embedded.Open(filepath.Join(t.TempDir(), "store"), 1<<20,
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	d := NewDirectory(Limits{})
	err = s.Watch(t.Context(), func(doc store.Doc) {
		if err := d.See(doc); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return &Register{Store: s, Directory: d}, d
}

func TestTheRegisterByHTTP(t *testing.T) {
	r, d := register(t)
	known(t, d, &Subject{Name: "guest", Namespaces: []Namespace{NewKey().Owned("guest")}})
	do := func(status int, method, path, body string) string {
		t.Helper()
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		if w.Code != status {
			t.Errorf("%s %s %s: %d %s, want %d", method, path, body, w.Code, w.Body, status)
		}
		return w.Body.String()
	}
	var made struct{ Key string }
	if err := json.Unmarshal([]byte(do(200, "POST", "/subjects",
		`{"subject":"ann","limits":{"firesPerMinute":3}}`)), &made); err != nil {
		t.Fatal(err)
	}
	uuid, secret, _ := strings.Cut(made.Key, ":")
	id, err := d.Identify(uuid, secret)
	if err != nil || id.Namespace != "ann" || id.Limits.FiresPerMinute != 3 {
		t.Fatalf("%+v, %v", id, err)
	}
	if list := do(200, "GET", "/subjects", ""); !strings.Contains(list, `"ann"`) ||
		strings.Contains(list, secret) {
		t.Errorf("list: %s", list)
	}
	do(200, "GET", "/subjects/ann", "")
	do(409, "POST", "/subjects", `{"subject":"ann"}`)
	do(409, "POST", "/subjects", `{"subject":"bob","namespace":"ann"}`)
	do(400, "POST", "/subjects", `{"subject":"a/b"}`)
	do(400, "POST", "/subjects", `{"subject":"_"}`)
	do(400, "POST", "/subjects", `{`)
	do(404, "POST", "/subjects/bob/block", "")
	do(409, "POST", "/subjects/guest/block", "")
	do(409, "DELETE", "/subjects/guest", "")
	do(200, "POST", "/subjects/ann/block", "")
	if _, err := d.Identify(uuid, secret); !errors.Is(err, ErrBlocked) {
		t.Errorf("blocked: %v", err)
	}
	do(200, "POST", "/subjects/ann/unblock", "")
	do(200, "POST", "/subjects/ann/limits", `{"firesPerMinute":0}`)
	if id, err := d.Identify(uuid, secret); err != nil || id.Limits.FiresPerMinute != 0 {
		t.Errorf("limited: %+v, %v", id, err)
	}
	do(400, "POST", "/subjects/ann/limits", `{"firesPerMinute":-1}`)
	do(409, "POST", "/subjects/guest/limits", `{"firesPerMinute":1}`)
	do(200, "DELETE", "/subjects/ann/limits", "")
	if id, err := d.Identify(uuid, secret); err != nil || id.Limits != Defaults {
		t.Errorf("no longer limited: %+v, %v", id, err)
	}
	do(404, "POST", "/subjects/ann/revoke", `{"namespace":"other"}`)
	do(200, "POST", "/subjects/ann/revoke", `{}`)
	if _, err := d.Identify(uuid, secret); !errors.Is(err, ErrUnknown) {
		t.Errorf("revoked: %v", err)
	}
	do(200, "DELETE", "/subjects/ann", "")
	do(http.StatusNotFound, "GET", "/subjects/ann", "")

	// Nobody gets ann's namespace before it is purged.
	if why := do(400, "POST", "/subjects", `{"subject":"ann"}`); !strings.Contains(why, "--purge") {
		t.Error(why)
	}
	do(409, "POST", "/subjects/guest/purge", "")
	do(404, "POST", "/subjects/bob/purge", "")
	if last := do(200, "POST", "/subjects/ann/purge", ""); !strings.Contains(last, `"done":true`) {
		t.Error(last)
	}
	do(404, "POST", "/subjects/ann/purge", "")
	do(200, "POST", "/subjects", `{"subject":"ann"}`)
	do(409, "POST", "/subjects/ann/purge", "")
	do(409, "POST", "/subjects", `{"subject":"you","namespace":"guest"}`)
}

func BenchmarkIdentify(b *testing.B) {
	d := NewDirectory(Limits{})
	key := NewKey()
	known(b, d, &Subject{Name: "ann", Namespaces: []Namespace{key.Owned("a")}})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Identify(key.UUID, key.Secret); err != nil {
			b.Fatal(err)
		}
	}
}
