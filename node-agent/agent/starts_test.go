package agent

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/startup"
)

func startFor(t *testing.T, a *Agent, id string) error {
	t.Helper()
	call := &api.Call{Action: "guest/hello", WaitedNs: uint64(time.Second)}
	_, err := a.Start(t.Context(), &api.StartRequest{Id: id, MemoryMib: 128, Init: []byte("{}"),
		Call: call})
	return err
}

func looked(t *testing.T, a *Agent, after uint64) *api.StartsReply {
	t.Helper()
	reply, err := a.Starts(t.Context(), &api.StartsRequest{After: after})
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func only(t *testing.T, reply *api.StartsReply) *api.ColdStart {
	t.Helper()
	if len(reply.Starts) != 1 {
		t.Fatalf("%d starts, want one: %v", len(reply.Starts), reply)
	}
	return reply.Starts[0]
}

func TestAStartIsOverWhenItsCallIsAnswered(t *testing.T) {
	a, d, _ := newAgent(t)
	d.hold = make(chan struct{})
	done := make(chan error)
	go func() { done <- startFor(t, a, "x") }()
	// Four spans: the caller's queue, ours, image, cni.
	for len(looked(t, a, 0).Starts) == 0 || len(only(t, looked(t, a, 0)).Spans) < 4 {
		runtime.Gosched()
	}
	s := only(t, looked(t, a, 0))
	if s.State != "starting" || s.EndNs != 0 || s.Call.Action != "guest/hello" ||
		s.Spans[0].EndNs-s.BeginNs != int64(time.Second) {
		t.Errorf("%v", s)
	}
	close(d.hold)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if s := only(t, looked(t, a, 0)); s.State != "starting" || s.Vf != "0000:01:10.0" {
		t.Errorf("ready, but not called yet: %v", s)
	}
	for range 2 { // The second run does not belong to the start.
		if _, err := a.Run(t.Context(), &api.RunRequest{Id: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	s = only(t, looked(t, a, 0))
	if last := s.Spans[len(s.Spans)-1]; s.State != "answered" || last.Stage != "first-byte" ||
		last.EndNs == 0 || s.EndNs < last.EndNs {
		t.Errorf("%v", s)
	}
	if reply := looked(t, a, 1); reply.Ended != 1 || len(reply.Starts) != 0 {
		t.Errorf("what was seen is told again: %v", reply)
	}
	only(t, looked(t, a, 99)) // as a caller asks that knew a former agent
	d.boxes["x"].Close()
	waitGone(a)
}

func TestHowStartsEnd(t *testing.T) {
	for _, c := range []struct {
		state, why string
		happen     func(a *Agent, d *driver)
	}{
		{"ready", "", func(a *Agent, d *driver) {
			_, _ = start(t, a, "x") // for nobody
			d.boxes["x"].Close()
		}},
		{"failed", "its /init answered HTTP 502", func(a *Agent, d *driver) {
			d.initial = 502
			_ = startFor(t, a, "x")
		}},
		{"failed", "it ended before it had answered", func(a *Agent, d *driver) {
			_ = startFor(t, a, "x")
			d.boxes["x"].Close()
		}},
		{"failed", "runtime /run: not reached: cut off", func(a *Agent, d *driver) {
			_ = startFor(t, a, "x")
			d.boxes["x"].broken = fmt.Errorf("cut off")
			_, _ = a.Run(t.Context(), &api.RunRequest{Id: "x"})
			d.boxes["x"].Close()
		}},
		{"refused", "reserve: no room for another sandbox: it asks for 2000 MiB and the node has 1000; use less memory or a larger node", func(a *Agent, _ *driver) {
			_, _ = a.Start(t.Context(), &api.StartRequest{Id: "x", MemoryMib: 2000})
		}},
	} {
		t.Run(c.state+" "+c.why, func(t *testing.T) {
			a, d, _ := newAgent(t)
			c.happen(a, d)
			waitGone(a)
			if s := only(t, looked(t, a, 0)); s.State != c.state || s.Why != c.why || s.EndNs == 0 {
				t.Errorf("%v", s)
			}
		})
	}
}

func TestAStemCellIsStartedTwice(t *testing.T) {
	a, d, _ := newAgent(t)
	startStem(t, a)
	if _, err := a.Init(t.Context(), &api.InitRequest{Id: "x", Init: []byte("{}"),
		Call: &api.Call{Action: "guest/hello"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Run(t.Context(), &api.RunRequest{Id: "x"}); err != nil {
		t.Fatal(err)
	}
	s := looked(t, a, 0).Starts
	if len(s) != 2 || s[0].State != "ready" || s[1].State != "answered" ||
		s[1].Spans[0].Stage != "app-init" {
		t.Errorf("%v", s)
	}
	d.boxes["x"].Close()
	waitGone(a)
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	var s starts
	for range 3 * keepStarts {
		s.begin("x", nil).ready("")
	}
	if len(s.past) != keepStarts || cap(s.past) > 3*keepStarts ||
		s.past[0].number != 2*keepStarts+1 {
		t.Errorf("%d starts kept, in an array of %d, from number %d on", len(s.past), cap(s.past),
			s.past[0].number)
	}
}

// BenchmarkStarts is a look at a node with 200 starts under way.
func BenchmarkStarts(b *testing.B) {
	a := &Agent{}
	for range 200 {
		c := a.starts.begin("x", &api.Call{Action: "guest/hello", WaitedNs: 1})
		for _, stage := range timeline.Order[:12] {
			c.Begin(stage)()
		}
	}
	for b.Loop() {
		if _, err := a.Starts(b.Context(), &api.StartsRequest{}); err != nil {
			b.Fatal(err)
		}
	}
}

// slowImages holds images that each take long to be made.
type slowImages struct {
	images
	made chan struct{}
}

func (i slowImages) Root(context.Context, string, string) (startup.Root, error) {
	<-i.made
	return startup.Root{}, nil
}

// TestAStartSaysWhatMakesItsImage in Starts and in Status, as long as its image is being made.
func TestAStartSaysWhatMakesItsImage(t *testing.T) {
	a, d, _ := newAgent(t)
	slow := slowImages{made: make(chan struct{})}
	a.Starter.Images, d.hold = slow, make(chan struct{})
	a.Building = func(image string) string {
		select {
		case <-slow.made:
			return ""
		default:
			return "builds " + image
		}
	}
	said := func() (why, reason string) {
		status, err := a.Status(t.Context(), &api.StatusRequest{})
		if err != nil || len(status.Sandboxes) != 1 {
			t.Fatalf("%v, %v", status, err)
		}
		return only(t, looked(t, a, 0)).Why, status.Sandboxes[0].Reason
	}
	done := make(chan error)
	go func() {
		_, err := a.Start(t.Context(), &api.StartRequest{Id: "x", Image: "python:3",
			MemoryMib: 128})
		done <- err
	}()
	for len(looked(t, a, 0).Starts) == 0 {
		runtime.Gosched()
	}
	if why, reason := said(); why != "builds python:3" || reason != why {
		t.Errorf("it waits for %q, and status says %q", why, reason)
	}
	close(slow.made)
	if why, reason := said(); why != "" || reason != "" {
		t.Errorf("it has its image, and waits for %q, %q", why, reason)
	}
	close(d.hold)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := a.Stop(t.Context(), &api.StopRequest{Id: "x"}); err != nil {
		t.Fatal(err)
	}
}

// The first answer tells how the VF came up beside the program: with the times that the start's own
// reply is without, and only if this call was what the sandbox was started for.
func TestTheFirstAnswerTellsOfTheGate(t *testing.T) {
	now := time.Now()
	late := timeline.Span{Stage: timeline.VFDriver, Begin: now, End: now.Add(time.Second)}
	for _, c := range []struct {
		name        string
		early, stem bool
		spans       int
		gate        bool
	}{
		{name: "up after the start", spans: 1, gate: true},
		{name: "up within the start", early: true, gate: true},
		{name: "of a stem cell", stem: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, d, _ := newAgent(t)
			if c.stem {
				startStem(t, a)
				if _, err := a.Init(t.Context(), &api.InitRequest{Id: "x", Init: []byte("{}"),
					Call: &api.Call{Action: "guest/hello"}}); err != nil {
					t.Fatal(err)
				}
			} else if err := startFor(t, a, "x"); err != nil {
				t.Fatal(err)
			}
			d.boxes["x"].gate = &timeline.Gate{Open: true, Held: 3, Spans: []timeline.Span{late}}
			if st := a.sandboxes["x"].st; c.early {
				st.Spans = append(st.Spans, late)
			}
			for call, want := range []bool{c.gate, false} {
				reply, err := a.Run(t.Context(), &api.RunRequest{Id: "x"})
				if err != nil {
					t.Fatal(err)
				}
				if (reply.Gate != nil) != want || want && len(reply.Gate.Spans) != c.spans {
					t.Errorf("call %d: %v", call, reply.Gate)
				}
			}
			d.boxes["x"].Close()
			waitGone(a)
		})
	}
}

// A VF that comes up after the first answer is measured, once, like any other.
func TestAVFThatIsUpAfterTheAnswerIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, d, _ := newAgent(t)
		d.opened = make(chan struct{})
		if err := startFor(t, a, "x"); err != nil {
			t.Fatal(err)
		}
		b := d.boxes["x"]
		for _, want := range []string{"", `stage="5-vf-driver"} 1`} {
			if _, err := a.Run(t.Context(), &api.RunRequest{Id: "x"}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			text, has := expose(t, a.Metrics.stages), want != ""
			if strings.Contains(text, "vf-driver") != has || !strings.Contains(text, want) {
				t.Errorf("want %q in\n%s", want, text)
			}
			if !has {
				late := timeline.Span{Stage: timeline.VFDriver, Begin: time.Now(),
					End: time.Now().Add(time.Second)}
				b.gate = &timeline.Gate{Open: true, Spans: []timeline.Span{late}}
				close(d.opened)
				synctest.Wait()
			}
		}
		b.Close()
		synctest.Wait()
	})
}
