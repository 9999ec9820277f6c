package sim

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/guest/wire"
	"github.com/fastiov/fastiov/node-agent/runtime/openwhisk"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func TestConformance(t *testing.T) {
	sandboxtest.Subject{
		Open: func() (sandbox.Driver, func(), error) {
			return New(Config{Stages: Table1(5 * time.Millisecond)}), func() {}, nil
		},
		Spec:   func(int) sandbox.Spec { return sandbox.Spec{MemoryMiB: 128} },
		AtOnce: 200,
		Within: time.Minute,
	}.Run(t)
}

func TestStagesTakeWhatIsProgrammed(t *testing.T) {
	var waited time.Duration
	d := New(Config{Wait: func(_ context.Context, d time.Duration) error {
		waited += d
		return nil
	}})
	var tl timeline.Timeline
	s, err := d.Start(t.Context(), sandbox.Spec{ID: "a"}, &tl, func(sandbox.Record) error {
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if diff := waited - DefaultTotal; diff < -time.Microsecond || diff > time.Microsecond {
		t.Errorf("a start takes %v, want %v", waited, DefaultTotal)
	}
	if n := len(tl.Spans()); n != len(Table1(0)) {
		t.Errorf("%d stages, want %d", n, len(Table1(0)))
	}
}

func TestWhatItLogsCallsItselfSimulated(t *testing.T) {
	d := New(Config{Stages: []Step{}})
	s, err := d.Start(t.Context(), sandbox.Spec{ID: "a"}, &timeline.Timeline{},
		func(sandbox.Record) error {
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r := openwhisk.New(s, wire.RuntimePort, nil)
	if _, _, err := r.Run(t.Context(), []byte(`{"value":{}}`), time.Time{}); err != nil {
		t.Fatal(err)
	}
	logs := r.Logs(t.Context(), time.Time{})
	if len(logs) != 1 || !strings.HasPrefix(logs[0].Text, "sim: ") {
		t.Errorf("%+v", logs)
	}
}

func TestClosingEndsARun(t *testing.T) {
	d := New(Config{Stages: []Step{}})
	s, err := d.Start(t.Context(), sandbox.Spec{ID: "a"}, &timeline.Timeline{},
		func(sandbox.Record) error {
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		r := openwhisk.New(s, wire.RuntimePort, nil)
		_, _, err := r.Run(context.Background(),
			[]byte(`{"value":{"sleep_ms":3600000}}`), time.Time{})
		ended <- err
	}()
	s.Close()
	if err := <-ended; err == nil {
		t.Error("a run outlived its sandbox")
	}
}
