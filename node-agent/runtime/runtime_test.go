package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/sim"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// start starts a simulated sandbox.
func start(t *testing.T) sandbox.Sandbox {
	t.Helper()
	d := sim.New(sim.Config{Stages: []sim.Step{}})
	owned := func(sandbox.Record) error { return nil }
	s, err := d.Start(t.Context(), sandbox.Spec{ID: "a"}, &timeline.Timeline{}, owned)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAProgramIsSpokenToAsItSays(t *testing.T) {
	for protocol, want := range map[string]string{
		"":          "*openwhisk.Runtime " + openwhisk.Sentinel,
		"openwhisk": "*openwhisk.Runtime " + openwhisk.Sentinel,
		"http":      "*http.Runtime ",
		"gopher":    `no protocol is named "gopher"; there are http and openwhisk`,
	} {
		s := start(t)
		p := wire.Program{Protocol: protocol}
		err := Prepare(&p)
		spec := sandbox.Spec{Program: wire.Program{Protocol: protocol}}
		spoken, failed := new(Speaker).In(s, spec)
		got := fmt.Sprintf("%T %s", spoken, p.Mark)
		if err != nil {
			got = err.Error()
		}
		if got != want || (err == nil) != (failed == nil) {
			t.Errorf("%q: %s, %v; want %s", protocol, got, failed, want)
		}
		s.Close()
	}
}

// What the agent does with a function, over a sandbox that is dialled.
func TestAFunctionInASandbox(t *testing.T) {
	s := start(t)
	defer s.Close()
	r, err := new(Speaker).In(s, sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.Ready(ctx); err != nil {
		t.Error(err)
	}
	if status, _, err := r.Init(ctx, []byte("{}")); err != nil || status != 200 {
		t.Errorf("%d, %v", status, err)
	}
	for i := range 3 {
		call := fmt.Appendf(nil, `{"value":{"i":%d}}`, i)
		status, answer, err := r.Run(ctx, call, time.Now().Add(time.Minute))
		if err != nil || status != 200 || string(answer) != fmt.Sprintf(`{"i":%d}`, i) {
			t.Errorf("%d %s, %v", status, answer, err)
		}
		lines := r.Logs(ctx, time.Time{})
		if len(lines) != 1 || !strings.HasPrefix(lines[0].Text, "sim: ") {
			t.Errorf("%v", lines)
		}
	}
	begin := time.Now()
	_, _, err = r.Run(ctx, []byte(`{"value":{"sleep_ms":60000}}`), begin.Add(50*time.Millisecond))
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 10*time.Second {
		t.Errorf("a run that takes too long: %v after %v", err, time.Since(begin))
	}
}

// That the programs of an image write no sentinels is found out once, not by each of its sandboxes.
func TestWhatIsLearnedOfAnImage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var speaker Speaker
		wait := func(spec sandbox.Spec) time.Duration {
			t.Helper()
			s := start(t)
			defer s.Close()
			r, err := speaker.In(s, spec)
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			r.Logs(t.Context(), time.Time{}) // nothing is written, as nothing was run
			return time.Since(begin)
		}
		one := sandbox.Spec{Root: "root", Layers: []string{"one"}}
		other := sandbox.Spec{Root: "root", Layers: []string{"other"}}
		first, second, others := wait(one), wait(one), wait(other)
		if second >= first || others != first {
			t.Errorf("waits of an image: %v, then %v; another's: %v", first, second, others)
		}
	})
}
