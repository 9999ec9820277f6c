package agent

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fastiov/fastiov/node-agent/api"
	netvf "github.com/fastiov/fastiov/node-agent/netpath/vf"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
	"github.com/fastiov/fastiov/node-agent/vf"
)

// What the first version wrote of a sandbox x that holds a VF.
//
//go:embed testdata/record-former.json
var formerRecord string

// left has an agent find record as a former one left it: a living sandbox x that holds a VF.
func left(t *testing.T, record string) (a *Agent, d *driver, v *vfs, log *bytes.Buffer) {
	t.Helper()
	a, d, v = newAgent(t)
	log = &bytes.Buffer{}
	a.Log = slog.New(slog.NewTextHandler(log, nil))
	owner := vf.Owner{Kind: vf.Sandbox, Name: "x", PID: 188, StartTicks: 5808}
	v.found = []vf.Lease{{BDF: "0000:01:10.0", Owner: owner}}
	d.adopts["x"] = true
	dir := a.Starter.Dir("x")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	record = strings.Replace(record, "DIR", dir, 1)
	if err := os.WriteFile(dir+"/record.json", []byte(record), 0o600); err != nil {
		t.Fatal(err)
	}
	return a, d, v, log
}

// A sandbox of the first version is ended without being asked anything, and its VF returned.
func TestWhatTheFirstVersionLeftIsEnded(t *testing.T) {
	a, d, v, log := left(t, formerRecord)
	adopted, ended := a.Adopt(t.Context())()
	if adopted != 0 || ended != 1 || !slices.Contains(d.ended, "x") || len(v.returned) != 1 {
		t.Errorf("%d adopted, %d ended: %v; returned %v", adopted, ended, d.ended, v.returned)
	}
	if !strings.Contains(log.String(), "of a former version") {
		t.Errorf("the log says %s", log.String())
	}
	if _, err := os.Stat(a.Starter.Dir("x")); err == nil {
		t.Error("its directory is still there")
	}
}

// A sandbox of the version before this one is adopted with the VF that its record names.
func TestWhatTheVersionBeforeLeftIsAdopted(t *testing.T) {
	a, _, v, log := left(t, strings.Replace(formerRecord, `{"Spec"`, `{"Version":2,"Spec"`, 1))
	if adopted, ended := a.Adopt(t.Context())(); adopted != 1 || ended != 0 {
		t.Errorf("%d adopted, %d ended: %s", adopted, ended, log)
	}
	if s := statusOf(t, a, "x"); s.GetVf() != "0000:01:10.0" || len(v.returned) != 0 {
		t.Errorf("it is %v, returned %v", s, v.returned)
	}
	_, _ = a.Stop(t.Context(), &api.StopRequest{Id: "x"})
}

// statusOf returns the sandbox from Status, or nil if it is not there.
func statusOf(t *testing.T, a *Agent, id string) *api.Sandbox {
	t.Helper()
	st, err := a.Status(t.Context(), &api.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range st.Sandboxes {
		if s.Id == id {
			return s
		}
	}
	return nil
}

// While sandboxes are being adopted they are shown as such and hold what they hold, calls to them
// wait, and other sandboxes are started.
func TestTheAPIServesWhileSandboxesAreAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, d, _ := newAgent(t)
		a.Starter.Admission = startup.NewAdmission(1000, nil)
		recordsOf(t, a, "well", "mute")
		d.adopts["well"] = true
		answer := make(chan struct{})
		d.adopting = func(ctx context.Context, id string) {
			if id == "mute" {
				<-ctx.Done()
			}
			<-answer
		}
		settled := inBackground(a.Adopt(t.Context()))
		began := time.Now()
		for _, id := range []string{"well", "mute"} {
			s := statusOf(t, a, id)
			if s.GetState() != adopting || s.MemoryMib != 128 || s.SinceNs != began.UnixNano() {
				t.Errorf("the first answer: %v", s)
			}
		}
		if brief, _ := a.Status(t.Context(),
			&api.StatusRequest{Brief: true}); len(brief.GetSandboxes()) != 2 {
			t.Errorf("the brief answer: %v", brief)
		}
		if used, _, _ := a.Starter.Admission.Usage(); used != 256 {
			t.Errorf("they hold %d MiB", used)
		}
		if _, err := start(t, a, "well"); status.Code(err) != codes.AlreadyExists {
			t.Errorf("the start of another of that name: %v", err)
		}
		if _, err := start(t, a, "fresh"); err != nil || time.Now() != began {
			t.Errorf("a start waits for adoption: %v", err)
		}
		hasty, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := a.Run(hasty, &api.RunRequest{Id: "well"})
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("a run that cannot wait: %v", err)
		}
		errs := map[string]error{}
		var runs sync.WaitGroup
		var mu sync.Mutex
		for _, id := range []string{"well", "mute"} {
			runs.Go(func() {
				_, err := a.Run(t.Context(), &api.RunRequest{Id: id})
				mu.Lock()
				defer mu.Unlock()
				errs[id] = err
			})
		}
		synctest.Wait()
		close(answer)
		runs.Wait()
		if errs["well"] != nil {
			t.Errorf("the run waits for the adoption: %v", errs["well"])
		}
		err = errs["mute"]
		if status.Code(err) != codes.NotFound ||
			!strings.Contains(err.Error(), "has not answered") {
			t.Errorf("a run in one that is not adopted: %v", err)
		}
		if adopted, ended := settled(); adopted != 1 || ended != 1 {
			t.Errorf("%d adopted, %d ended", adopted, ended)
		}
		if s := statusOf(t, a, "well"); s.GetState() != "ready" || !s.Adopted {
			t.Errorf("adopted: %v", s)
		}
		_, _ = a.Drain(t.Context(), &api.DrainRequest{Cancel: true})
		if used, _, _ := a.Starter.Admission.Usage(); used != 0 {
			t.Errorf("%d MiB are left over", used)
		}
	})
}

// One that has not answered in time is ending from then on, however long its process takes to die,
// and holds what it holds until then.
func TestOneThatDiesSlowlyIsEndingMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, d, v := newAgent(t)
		var log bytes.Buffer
		a.Log = slog.New(slog.NewTextHandler(&log, nil))
		recordsOf(t, a, "slow", "undead")
		die := make(chan struct{})
		d.adopting = func(_ context.Context, id string) {
			if id == "slow" { // the driver takes down what it could not adopt
				<-die
			}
		}
		d.ending = func(id string) {
			if id == "undead" {
				<-die
			}
		}
		began := time.Now()
		settled := inBackground(a.Adopt(t.Context()))
		time.Sleep(2 * headStart)
		synctest.Wait()
		if s := statusOf(t, a, "undead"); s.GetState() != "ending" ||
			s.Reason != "it does not answer" {
			t.Errorf("one that cannot be adopted: %v", s)
		}
		if s := statusOf(t, a, "slow"); s.GetState() != "adopting" {
			t.Errorf("before its deadline: %v", s)
		}
		time.Sleep(2 * adoptWithin)
		synctest.Wait()
		late := began.Add(adoptWithin).UnixNano()
		if s := statusOf(t, a, "slow"); s.GetState() != "ending" || s.SinceNs != late ||
			s.Reason != "it has not answered within 15s" {
			t.Errorf("after its deadline: %v", s)
		}
		if used, _, _ := a.Starter.Admission.Usage(); used != 256 || len(v.returned) != 0 {
			t.Errorf("while they die: %d MiB, returned %v", used, v.returned)
		}
		close(die)
		settled()
		if used, _, _ := a.Starter.Admission.Usage(); used != 0 || statusOf(t, a, "slow") != nil {
			t.Errorf("when they have ended: %d MiB", used)
		}
		if n := strings.Count(log.String(), "ending a sandbox"); n != 2 {
			t.Errorf("each is logged once: %s", log.String())
		}
	})
}

// inBackground begins to settle, and returns what waits for the end of that.
func inBackground(settle func() (adopted, ended int)) func() (adopted, ended int) {
	var a, e int
	done := make(chan struct{})
	go func() {
		defer close(done)
		a, e = settle()
	}()
	return func() (int, int) {
		<-done
		return a, e
	}
}

// An agent that ends while it adopts leaves what it has not adopted to the next one.
func TestAnAgentThatEndsLeavesWhatItAdopts(t *testing.T) {
	a, d, v := newAgent(t)
	recordsOf(t, a, "x")
	v.found = []vf.Lease{{BDF: "0000:01:10.0"}}
	d.adopting = func(ctx context.Context, _ string) { <-ctx.Done() }
	ctx, letGo := context.WithCancelCause(t.Context())
	settled := inBackground(a.Adopt(ctx))
	letGo(sandbox.ErrLetGo)
	adopted, ended := settled()
	if adopted != 0 || ended != 0 || len(d.ended) != 0 || len(v.returned) != 0 {
		t.Errorf("%d adopted, %d ended: %v; returned %v", adopted, ended, d.ended, v.returned)
	}
	if _, err := os.Stat(a.Starter.Dir("x")); err != nil {
		t.Error(err)
	}
}

// A pool of many VFs, which sees to it that no VF has two tenants.
type manyVFs struct {
	vfs
	t    *testing.T
	held map[string]string // sandbox by VF
	free []string
}

func (v *manyVFs) Lease(owner vf.Owner, _ vf.Want) (vf.Lease, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.free) == 0 {
		return vf.Lease{}, vf.ErrEmpty
	}
	bdf := v.free[0]
	v.free = v.free[1:]
	v.held[bdf] = owner.Name
	return vf.Lease{BDF: bdf, Owner: owner}, nil
}

func (v *manyVFs) Return(l vf.Lease) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.held[l.BDF] != l.Owner.Name {
		v.t.Errorf("%s returns %s, which %q holds", l.Owner.Name, l.BDF, v.held[l.BDF])
	}
	delete(v.held, l.BDF)
	v.free = append(v.free, l.BDF)
}

// However adoption meets stops, drains, losses, runs and starts: none is stuck, whatever somebody
// wanted to end has ended, no VF has two tenants, and nothing is left over.
func TestRacesOfAdoption(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 30
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range rounds {
		synctest.Test(t, func(t *testing.T) { raceOfAdoption(t, random) })
		if t.Failed() {
			t.Fatalf("round %d", round)
		}
	}
}

func raceOfAdoption(t *testing.T, random *rand.Rand) {
	const n = 6
	a, d, _ := newAgent(t)
	pool := &manyVFs{t: t, held: map[string]string{},
		free: []string{"0000:01:10.6", "0000:01:10.7"}}
	a.VFs, a.Starter.Admission = pool, startup.NewAdmission(10_000, netvf.Path{Pool: pool})
	took, slow := map[string]time.Duration{}, map[string]time.Duration{}
	wait := func() time.Duration { // never just as long as an adoption may take
		return time.Duration(random.IntN(20))*time.Second + 500*time.Millisecond
	}
	for i := range n {
		id, bdf := fmt.Sprint("x", i), fmt.Sprintf("0000:01:10.%d", i)
		recordOf(t, a, id, bdf)
		lease := vf.Lease{BDF: bdf, Owner: vf.Owner{Kind: vf.Sandbox, Name: id, PID: 1}}
		pool.found, pool.held[bdf] = append(pool.found, lease), id
		d.adopts[id], took[id], slow[id] = random.IntN(4) > 0, wait(), wait()
	}
	d.adopting = func(ctx context.Context, id string) {
		select {
		case <-time.After(took[id]):
		case <-ctx.Done():
			time.Sleep(slow[id]) // the driver takes it down
		}
	}
	d.ending = func(id string) { time.Sleep(slow[id]) }
	settled := inBackground(a.Adopt(t.Context()))
	st, _ := a.Status(t.Context(), &api.StatusRequest{})
	if len(st.Sandboxes) != n || st.MemoryReservedMib != n*128 {
		t.Errorf("the first answer: %v", st)
	}
	var all sync.WaitGroup
	unwanted := map[string]bool{}
	for range 1 + random.IntN(12) {
		id, at := fmt.Sprint("x", random.IntN(n)), wait()
		does := random.IntN(12)
		switch does {
		case 0, 1, 2, 3, 4, 5:
			unwanted[id] = true
		case 6: // a drain
			for i := range n {
				unwanted[fmt.Sprint("x", i)] = true
			}
		}
		all.Go(func() {
			time.Sleep(at)
			switch does {
			case 0, 1, 2:
				if _, err := a.Stop(t.Context(), &api.StopRequest{Id: id}); err != nil {
					t.Error(err)
				}
			case 3, 4, 5:
				lose(a, id)
			case 6:
				if _, err := a.Drain(t.Context(), &api.DrainRequest{Cancel: true}); err != nil {
					t.Error(err)
				}
			case 7, 8:
				_, err := start(t, a, fmt.Sprint("fresh", at))
				if code := status.Code(err); code == codes.Internal {
					t.Error(err)
				}
			default:
				_, err := a.Run(t.Context(), &api.RunRequest{Id: id})
				code := status.Code(err)
				cut := strings.Contains(fmt.Sprint(err), "closed pipe") // by an end
				if code != codes.OK && code != codes.NotFound && !cut {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	settled()
	synctest.Wait()
	for i := range n {
		id := fmt.Sprint("x", i)
		s := statusOf(t, a, id)
		may := d.adopts[id] && took[id] < adoptWithin && !unwanted[id]
		if (s.GetState() == "ready") != may || !may && s != nil {
			t.Errorf("%s answers after %v, is unwanted: %t, and is now %v", id, took[id],
				unwanted[id], s)
		}
	}
	if _, err := a.Drain(t.Context(), &api.DrainRequest{Cancel: true}); err != nil {
		t.Error(err)
	}
	synctest.Wait()
	used, _, _ := a.Starter.Admission.Usage()
	if used != 0 || len(pool.held) != 0 || len(pool.free) != n+2 {
		t.Errorf("left over: %d MiB, %v, free %v", used, pool.held, pool.free)
	}
}
