package startup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

func request(id string) Request {
	return Request{ID: id, Image: "python:3", Init: []byte(`{}`), MemoryMiB: 128,
		Env: map[string]string{"B": "caller"}}
}

func TestStart(t *testing.T) {
	p, d := newPool(2), &driver{}
	s := newStarter(t, p, d)
	st, err := s.Start(t.Context(), request("a"))
	if err != nil {
		t.Fatal(err)
	}
	if got := st.Spec.NIC.Address.String(); got != "10.0.2.100/24" {
		t.Errorf("address %s", got)
	}
	if st.Spec.Program.Env["A"] != "image" || st.Spec.Program.Env["B"] != "caller" {
		t.Errorf("environment %v, the caller's must win", st.Spec.Program.Env)
	}
	if l := p.leased[st.Spec.NIC.Device()]; l.ID != "a" || l.PID != 4242 || l.StartTicks != 7 {
		t.Errorf("the lease of its NIC is %+v", l)
	}
	if rec, err := ReadRecord(s.Dir("a")); err != nil || rec.PID != 4242 {
		t.Errorf("record %+v, %v", rec, err)
	}
	var stages []string
	for _, span := range st.Spans {
		stages = append(stages, string(span.Stage))
	}
	if got, want := strings.Join(stages, " "), "image queue cni vmm app-init"; got != want {
		t.Errorf("stages %q, want %q", got, want)
	}
	s.Release(st)
	s.Release(st)
	nothingLeft(t, s, p, d)
}

func nothingLeft(t *testing.T, s *Starter, p *pool, d *driver) {
	t.Helper()
	used, _, waiting := s.Admission.Usage()
	if used != 0 || waiting != 0 || p.held() != 0 || d.running != 0 {
		t.Errorf("left over: %d MiB, %d waiting, %d VFs, %d sandboxes", used,
			waiting, p.held(), d.running)
	}
	if left := s.Leftovers(nil); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestAFailedStartLeavesItsReportAndNothingElse(t *testing.T) {
	for _, fail := range []string{"image", "boot", "init", "wire"} {
		t.Run(fail, func(t *testing.T) {
			p, d := newPool(1), &driver{fail: fail}
			s := newStarter(t, p, d)
			switch fail {
			case "image":
				s.Images = images{errors.New("no image python:3")}
			case "wire":
				s.Network.First = s.Network.DNS.Prev().Prev().Prev().Prev() // outside of the subnet
			}
			_, err := s.Start(t.Context(), request("a"))
			if err == nil || !strings.HasPrefix(err.Error(), fail+": ") {
				t.Fatalf("error %v does not begin with the phase", err)
			}
			nothingLeft(t, s, p, d)
			files := readReport(t, s.Reports, "a")
			if !strings.Contains(files["cause.txt"], err.Error()) ||
				!strings.Contains(files["stages.txt"], "image") {
				t.Errorf("report: %q", files)
			}
		})
	}
}

func readReport(t *testing.T, r *Reports, id string) map[string]string {
	t.Helper()
	b, err := r.Read(id)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(content)
	}
}

// A VF may fail its tenant before that is ready. The pool hears of it while it knows the tenant.
func TestAVFThatFailsAStartIsTold(t *testing.T) {
	p, d := newPool(1), &driver{fail: "vf"}
	s := newStarter(t, p, d)
	if _, err := s.Start(t.Context(), request("a")); err == nil {
		t.Fatal("it has started")
	}
	if len(p.faults) != 1 || p.faults[0] != "AER" {
		t.Errorf("its faults are %q", p.faults)
	}
	nothingLeft(t, s, p, d)
}

func TestACallerThatGoesAwayFreesWhatItHeld(t *testing.T) {
	p, d := newPool(1), &driver{hang: true}
	s := newStarter(t, p, d)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := s.Start(ctx, request("a"))
		done <- err
	}()
	for p.held() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that it was cancelled", err)
	}
	nothingLeft(t, s, p, d)
}

func TestAPhaseThatTakesTooLongIsNamed(t *testing.T) {
	p, d := newPool(1), &driver{hang: true}
	s := newStarter(t, p, d)
	s.Deadlines.Boot = time.Millisecond
	_, err := s.Start(t.Context(), request("a"))
	if err == nil || err.Error() != "boot: not done within 1ms" {
		t.Errorf("error %v", err)
	}
	nothingLeft(t, s, p, d)
}

func TestBrokenCodeIsAnAnswer(t *testing.T) {
	s := newStarter(t, newPool(1), &driver{fail: "code"})
	st, err := s.Start(t.Context(), request("a"))
	if err != nil || st.InitStatus != 502 {
		t.Fatalf("status %d, error %v", st.InitStatus, err)
	}
	s.Release(st)
}

func TestARunningNameIsNotTakenTwice(t *testing.T) {
	p, d := newPool(2), &driver{}
	s := newStarter(t, p, d)
	st, err := s.Start(t.Context(), request("a"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release(st)
	if _, err := s.Start(t.Context(), request("a")); err == nil {
		t.Fatal("two sandboxes of one name")
	}
	if _, err := os.Stat(s.Dir("a")); err != nil {
		t.Errorf("the second start took the first one's directory: %v", err)
	}
}

func TestReportsAreBounded(t *testing.T) {
	r := &Reports{Dir: t.TempDir(), Keep: 2}
	spec := newStarter(t, newPool(0), &driver{})
	for i := range 5 {
		st := &Started{}
		st.Spec.ID, st.Spec.Dir = fmt.Sprint(i), spec.RunDir
		r.Write(st.Spec, []timeline.Span{{Stage: timeline.VMM}}, errors.New("broken"))
	}
	if entries, _ := os.ReadDir(r.Dir); len(entries) != 2 {
		t.Errorf("%d reports, want 2", len(entries))
	}
	if _, err := r.Read("nobody"); err == nil || !strings.Contains(err.Error(), "no report") {
		t.Errorf("error %v", err)
	}
}

// A tarpit is a registry that answers nobody.
type tarpit struct{ images }

func (tarpit) Root(ctx context.Context, _, _ string) (Root, error) {
	<-ctx.Done()
	return Root{}, context.Cause(ctx)
}

func TestASlowRegistryHoldsNoVF(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := newPool(2), &driver{}
		slow, quick := newStarter(t, p, d), newStarter(t, p, d)
		slow.Admission, slow.Images = quick.Admission, tarpit{}
		ctx, cancel := context.WithCancelCause(t.Context())
		var calls sync.WaitGroup
		for n := range 200 {
			calls.Go(func() { _, _ = slow.Start(ctx, request(fmt.Sprint("slow-", n))) })
		}
		synctest.Wait() // all of them are held up by the registry
		used, _, waiting := slow.Admission.Usage()
		if p.held() != 0 || used != 0 || waiting != 0 {
			t.Errorf("%d VFs leased, %d MiB reserved, %d waiting; want none",
				p.held(), used, waiting)
		}
		st, err := quick.Start(t.Context(), request("other"))
		if err != nil {
			t.Fatalf("another tenant's start meanwhile: %v", err)
		}
		quick.Release(st)
		cancel(&Refused{"the test ends"}) // No report is written of a refusal.
		calls.Wait()
		nothingLeft(t, quick, p, d)
	})
}

func TestTheImageIsHeldAsLongAsTheSandbox(t *testing.T) {
	for _, fail := range []string{"", "boot", "init"} {
		var held int
		s := newStarter(t, newPool(1), &driver{fail: fail})
		s.Images = counted{held: &held}
		st, err := s.Start(t.Context(), request("a"))
		if err == nil {
			if held != 1 {
				t.Errorf("%d holds while it runs, want 1", held)
			}
			s.Release(st)
		}
		if held != 0 {
			t.Errorf("after it ended (%q): %d holds, want 0", fail, held)
		}
	}
}

type counted struct {
	images
	held *int
}

func (c counted) Root(context.Context, string, string) (Root, error) {
	*c.held++
	return Root{Path: "/root.erofs", Release: func() { *c.held-- }}, nil
}
