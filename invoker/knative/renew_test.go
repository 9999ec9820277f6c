package knative

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	node "github.com/fastiov/fastiov/node-agent/api"
)

// A renewer is a house whose tokens go by a clock that stands until it is moved.
type renewer struct {
	*house
	moved atomic.Int64
	looks atomic.Int64
	asked chan *node.RenewRequest
}

// renewing has a house's node take what is renewed. What it answers is what it is told.
func (h *house) renewing(answer renews) *renewer {
	r := &renewer{house: h, asked: make(chan *node.RenewRequest, 100)}
	r.moved.Store(time.Now().UnixNano())
	h.api.prober.renewal = renewal{look: time.Millisecond, within: time.Minute,
		now: func() time.Time {
			r.looks.Add(1)
			return time.Unix(0, r.moved.Load())
		}}
	take := renews(func(ctx context.Context, in *node.RenewRequest) error {
		r.asked <- in
		return answer(ctx, in)
	})
	h.node.renews.Store(&take)
	return r
}

// pass moves the clock, and returns when it has been read again, so often that a program whose
// tokens are due is being seen to.
func (r *renewer) pass(d time.Duration) {
	r.t.Helper()
	r.moved.Add(int64(d))
	seen := r.looks.Load()
	r.until("the clock is read", func() bool { return r.looks.Load() > seen+20 })
}

// next returns what is renewed next.
func (r *renewer) next() *node.RenewRequest {
	r.t.Helper()
	r.until("a token is renewed", func() bool { return len(r.asked) > 0 })
	return <-r.asked
}

// asks moves the clock, and returns the containers whose tokens are renewed for it, so many at
// least.
func (r *renewer) asks(d time.Duration, least int) (all []string) {
	r.t.Helper()
	r.pass(d)
	r.until("tokens are renewed", func() bool { return len(r.asked) >= least })
	for len(r.asked) > 0 {
		all = append(all, (<-r.asked).Sidecar)
	}
	slices.Sort(all)
	return all
}

func renewed(context.Context, *node.RenewRequest) error { return nil }

// with returns a service with a container that has its tokens in /tokens, of which the first to end
// lives for 600 s. Others may mount them, too.
func with(name, mount, sidecars string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"template":{"spec":{"containers":[%s
		{"name":"own","image":"example.com/hello","ports":[{"containerPort":9000}],"volumeMounts":[
			{"name":"e","mountPath":"/empty"},%s]}],
		"volumes":[{"name":"e","emptyDir":{}},{"name":"t","projected":{"defaultMode":256,"sources":[
			{"serviceAccountToken":{"audience":"bank","expirationSeconds":600,"path":"a"}},
			{"serviceAccountToken":{"path":"deep/b"}}]}}]}}}}`, name, sidecars, mount)
}

const inFolder = `{"name":"t","mountPath":"/tokens"}`

// While a sandbox lives, its programs' tokens are renewed in their places: soon after its start,
// and each time before one ends. It is the wall's clock that counts.
func TestATokenIsRenewed(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	r := h.renewing(renewed)
	h.must("POST", objects+"services", with("hello", `{"name":"t","mountPath":"/part","subPath":"a"},
		{"name":"t","mountPath":"/deep","subPath":"deep"},`+inFolder,
		`{"name":"side","image":"example.com/side","volumeMounts":[`+inFolder+`]},
		{"name":"none","image":"example.com/none"},`))
	h.ready("hello", "True")
	h.shown(core+"events", "mounted alone (subPath) ends 10m0s after")
	if all := r.asks(0, 0); len(all) > 0 {
		t.Errorf("at once: %q", all)
	}
	first := h.started("hello-00001").Mounts
	r.pass(firstRenewed)
	h.until("both are", func() bool { return len(r.asked) > 1 })
	seen := map[string]int{}
	for len(r.asked) > 0 {
		r := <-r.asked
		seen[r.Sidecar]++
		var paths []string
		for _, m := range r.Mounts {
			paths = append(paths, fmt.Sprint(m.Path, len(m.Files)))
		}
		if r.Sidecar == "side" {
			if fmt.Sprint(paths) != "[/tokens2]" {
				t.Errorf("the sidecar's are %s", paths)
			}
			continue
		}
		if fmt.Sprint(paths) != "[/deep1 /empty0 /part0 /tokens2]" ||
			r.Mounts[0].Files[0].Name != "b" {
			t.Fatalf("they are %s", paths)
		}
		was, is := first[3].Files[0], r.Mounts[3].Files[0]
		token, err := jwt.ParseSigned(string(is.Data), []jose.SignatureAlgorithm{jose.ES256})
		if err != nil {
			t.Fatal(err)
		}
		var says jwt.Claims
		if err := token.Claims(h.public(), &says); err != nil || is.Name != "a" ||
			is.Mode != was.Mode || string(is.Data) == string(was.Data) ||
			!says.Audience.Contains("bank") || time.Until(says.Expiry.Time()) < 590*time.Second {
			t.Errorf("%s %o: %+v, %v", is.Name, is.Mode, says, err)
		}
	}
	if len(seen) != 2 || seen[""] != 1 || seen["side"] != 1 {
		t.Errorf("first %v", seen)
	}
	for _, c := range []struct {
		after time.Duration
		want  string
	}{{7 * time.Minute, "[]"}, {2 * time.Minute, `["" "side"]`}, {10 * time.Hour, `["" "side"]`},
		{0, "[]"}} {
		if all := r.asks(c.after, strings.Count(c.want, `"`)/2); fmt.Sprintf("%q", all) != c.want {
			t.Errorf("after %s: %q", c.after, all)
		}
	}
	h.removed("hello")
	h.until("its sandbox is gone", func() bool {
		h.api.prober.mu.Lock()
		defer h.api.prober.mu.Unlock()
		return len(h.api.prober.of) == 0
	})
	r.moved.Add(int64(time.Hour))
	h.api.prober.done.Wait()
	if len(r.asked) > 0 {
		t.Error("renewed after its end")
	}
	if now := newRenewal().now().String(); strings.Contains(now, "m=") {
		t.Errorf("%s stands while the machine sleeps", now)
	}
}

// Sandboxes are not seen to in step.
func TestRenewalsAreSpread(t *testing.T) {
	all := map[time.Duration]bool{}
	for range 100 {
		d := untilRenewed(1000 * time.Second)
		if all[d] = true; d < 750*time.Second || d > 850*time.Second {
			t.Errorf("after %s", d)
		}
	}
	if len(all) < 50 {
		t.Errorf("%d times", len(all))
	}
}

// Where two sources have a path, the later has it: a Secret's key is never a token's place.
func TestOnlyTokensAreRenewed(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	r := h.renewing(renewed)
	h.must("POST", core+"secrets", secretOf("s", "x", "hush"))
	h.must("POST", core+"configmaps", `{"metadata":{"name":"c"},"data":{"k":"v"}}`)
	h.must("POST", objects+"services", `{"metadata":{"name":"hello"},"spec":{"template":{"spec":{
		"containers":[{"image":"example.com/hello","volumeMounts":[
			{"name":"t","mountPath":"/tokens"}]}],
		"volumes":[{"name":"t","projected":{"sources":[
			{"serviceAccountToken":{"path":"x"}},{"serviceAccountToken":{"path":"y"}},
			{"serviceAccountToken":{"path":"z"}},{"serviceAccountToken":{"path":"two"}},
			{"serviceAccountToken":{"path":"two","audience":"bank"}},
			{"secret":{"name":"s"}},
			{"configMap":{"name":"c","items":[{"key":"k","path":"y"}]}},
			{"secret":{"name":"s","optional":true,"items":[{"key":"none","path":"z"}]}},
			{"configMap":{"name":"none","optional":true}},
			{"configMap":{"name":"c","items":[{"key":"k","path":"last"}]}},
			{"serviceAccountToken":{"path":"last"}}]}}]}}}}`)
	h.ready("hello", "True")
	files := map[string]string{}
	for _, f := range h.started("hello-00001").Mounts[0].Files {
		files[f.Name] = string(f.Data)
	}
	if files["x"] != "hush" || files["y"] != "v" {
		t.Errorf("it has %q", files)
	}
	r.pass(0) // its first turn is set
	r.pass(firstRenewed)
	var names []string
	for _, f := range r.next().Mounts[0].Files {
		names = append(names, f.Name)
		if f.Name == "two" && strings.Split(string(f.Data), ".")[1] ==
			strings.Split(files["z"], ".")[1] {
			t.Error("it is for another audience")
		}
	}
	if fmt.Sprint(names) != "[last two z]" {
		t.Errorf("renewed %q", names)
	}
}

// A node that does not renew a token is asked again, whatever it answers; the owner is told before
// a token has ended unseen, and of a node that may come back not before.
func TestATokenThatIsNotRenewed(t *testing.T) {
	for name, c := range map[string]struct {
		says renews
		told string
		soon bool // it is told at once
		next time.Duration
	}{
		"unable": {func(_ context.Context, in *node.RenewRequest) error {
			return status.Error(codes.Unimplemented, "unknown method Renew")
		}, "replaces no files", true, time.Minute},
		"broken": {func(_ context.Context, in *node.RenewRequest) error {
			return status.Errorf(codes.Aborted, "sandbox %s: no space left", in.Id)
		}, "tried again: no space left", true, renewedAgain},
		"away": {func(context.Context, *node.RenewRequest) error {
			return status.Error(codes.Unavailable, "connection refused")
		}, "tried again: connection refused", false, renewedAgain},
		"hung": {func(ctx context.Context, _ *node.RenewRequest) error {
			<-ctx.Done()
			return status.FromContextError(ctx.Err()).Err()
		}, "deadline exceeded", false, renewedAgain},
		"ending": {func(_ context.Context, in *node.RenewRequest) error {
			return status.Errorf(codes.NotFound, "no started sandbox %q on this node", in.Id)
		}, "tried again: no started sandbox on this node", false, renewedAgain},
	} {
		t.Run(name, func(t *testing.T) {
			h, leave := aHouse(t)
			defer leave()
			var well atomic.Bool
			r := h.renewing(func(ctx context.Context, in *node.RenewRequest) error {
				if well.Load() {
					return nil
				}
				return c.says(ctx, in)
			})
			if name == "hung" {
				h.api.prober.renewal.within = time.Millisecond
			}
			h.must("POST", objects+"services", with("hello", inFolder, ""))
			h.ready("hello", "True")
			r.pass(0) // its first turn is set
			r.moved.Add(int64(firstRenewed))
			r.next()
			if c.soon {
				h.shown(core+"events", c.told)
			}
			r.pass(0) // its answer is taken in
			r.moved.Add(int64(c.next))
			r.next()
			r.pass(0)
			if strings.Contains(h.table(core+"events"), "TokenNotRenewed") != c.soon {
				t.Errorf("it is told of at once, or not: %s", h.table(core+"events"))
			}
			r.moved.Add(int64(5 * time.Minute)) // a token of 600 s may have ended
			r.next()
			h.shown(core+"events", c.told)
			r.pass(0)
			well.Store(true)
			r.moved.Add(int64(time.Minute))
			r.next()
			if all := r.asks(7*time.Minute, 0); len(all) > 0 {
				t.Errorf("renewed too early: %q", all)
			}
		})
	}
}

// What is said of a sandbox names none: else each would have an Event of its own.
func TestSaidOf(t *testing.T) {
	for said, want := range map[string]string{
		"sandbox w-1: no such file":                     "no such file",
		"sandbox w-1 is still being adopted":            "the sandbox is still being adopted",
		"sandbox w-1 has ended":                         "the sandbox has ended",
		`no started sandbox "w-1" on this node: it end`: "no started sandbox on this node: it end",
	} {
		for _, err := range []error{status.Error(codes.Aborted, said), errors.New(said)} {
			if got := saidOf("w-1", err); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
	}
}

// Who cannot renew a token is told of again before what was told of it is forgotten.
func TestATokenThatIsNotRenewedIsToldOfAgain(t *testing.T) {
	h, leave := aHouse(t)
	defer leave()
	r := h.renewing(func(context.Context, *node.RenewRequest) error {
		return status.Error(codes.Unimplemented, "unknown method Renew")
	})
	h.must("POST", objects+"services", with("hello", inFolder, ""))
	h.ready("hello", "True")
	r.pass(0) // its first turn is set
	told := func(times int32) bool {
		var list corev1.EventList
		if err := json.Unmarshal([]byte(h.must("GET", core+"events", "")), &list); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.Reason == "TokenNotRenewed" && e.Count == times
		})
	}
	turn := func(after time.Duration) {
		r.moved.Add(int64(after))
		r.next()
		r.pass(0) // its answer is taken in
	}
	turn(firstRenewed)
	h.until("it is told", func() bool { return told(1) })
	turn(time.Minute)
	turn(eventsFor / 2)
	h.until("it is told again", func() bool { return told(2) })
}
