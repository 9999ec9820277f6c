package vf_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/fastiov/fastiov/leaks"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/node-agent/vf/vftest"
)

// A bench is a host to run the suite on: emulated, or real.
type bench struct {
	// config returns a host that nobody uses, and the same host at every call within one test.
	config func(t *testing.T) vf.Config
	hold   func(group string) (interface{ Close() error }, error)
	driver func(bdf string) string
	vfs    int
}

// suite tests what holds on every host, whatever is below the pool.
func suite(t *testing.T, b bench) {
	t.Run("open", b.testOpen)
	t.Run("empty", b.testEmpty)
	t.Run("late return", b.testLateReturn)
	t.Run("restart", b.testRestart)
	t.Run("held", b.testHeld)
	t.Run("one agent", b.testOneAgent)
	t.Run("undo", b.testUndo)
}

func TestEmulated(t *testing.T) {
	defer leaks.None(t, goleak.IgnoreCurrent()) // a test host may be up
	for _, pf := range []vftest.PF{vftest.IGB, vftest.NVMe} {
		t.Run(pf.Driver, func(t *testing.T) {
			trees := map[*testing.T]*vftest.Tree{}
			tree := func(t *testing.T) *vftest.Tree {
				if trees[t] == nil {
					trees[t] = makeTree(t, pf)
				}
				return trees[t]
			}
			var last *vftest.Tree
			suite(t, bench{
				config: func(t *testing.T) vf.Config { last = tree(t); return last.Config() },
				hold: func(group string) (interface{ Close() error }, error) {
					return vftest.Open(group)
				},
				driver: func(bdf string) string { return last.Driver(bdf) },
				vfs:    pf.VFs,
			})
		})
	}
}

// makeTree is an emulated host with PFs, which must not have been misused when the test ends.
func makeTree(t *testing.T, pfs ...vftest.PF) *vftest.Tree {
	t.Helper()
	tree := vftest.Make(t)
	for _, pf := range pfs {
		if err := tree.AddPF(pf); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if v := tree.Violations(); v != "" {
			t.Errorf("the pool did what it never may:\n%s", v)
		}
	})
	return tree
}

func open(t *testing.T, cfg vf.Config) *vf.Pool {
	t.Helper()
	p, err := vf.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// lease takes a VF for a sandbox as soon as there is one.
func lease(t *testing.T, p *vf.Pool, name string) vf.Lease {
	t.Helper()
	return leaseFor(t, p, sandbox(name), vf.Want{})
}

func sandbox(name string) vf.Owner { return vf.Owner{Kind: vf.Sandbox, Name: name} }

func leaseFor(t *testing.T, p *vf.Pool, owner vf.Owner, want vf.Want) vf.Lease {
	t.Helper()
	for range p.Watch(t.Context()) {
		l, err := p.Lease(owner, want)
		if err == nil {
			return l
		}
		if !errors.Is(err, vf.ErrEmpty) && !errors.Is(err, vf.ErrLinkDown) {
			t.Fatal(err)
		}
	}
	t.Fatal("there was no VF before the test had to end")
	return vf.Lease{}
}

// returnLost returns each lease that is lost, and tells of it.
func returnLost(t *testing.T, p *vf.Pool, told func(vf.News)) {
	go func() {
		for news := range p.Watch(t.Context()) {
			for _, n := range news {
				if n.Lost != "" {
					told(n)
					p.Return(vf.Lease{BDF: n.BDF, Generation: n.Generation})
				}
			}
		}
	}()
}

func count(p *vf.Pool, state vf.State) (n int) {
	for _, s := range p.Snapshot() {
		if s.State == state {
			n++
		}
	}
	return n
}

func status(t *testing.T, p *vf.Pool, bdf string) vf.Status {
	t.Helper()
	for _, s := range p.Snapshot() {
		if s.BDF == bdf {
			return s
		}
	}
	t.Fatalf("%s is not in the pool", bdf)
	return vf.Status{}
}

func (b bench) testOpen(t *testing.T) {
	p := open(t, b.config(t))
	seen := map[string]bool{}
	for _, s := range p.Snapshot() {
		if s.State != vf.Idle || b.driver(s.BDF) != "vfio-pci" {
			t.Errorf("%s is %s and bound to %q", s.BDF, s.State, b.driver(s.BDF))
		}
		if s.MAC != "" && seen[s.MAC] {
			t.Errorf("MAC %s twice", s.MAC)
		}
		seen[s.MAC] = true
	}
	if n := len(p.Snapshot()); n != b.vfs {
		t.Errorf("%d VFs, want %d", n, b.vfs)
	}
}

func (b bench) testEmpty(t *testing.T) {
	p := open(t, b.config(t))
	var leases []vf.Lease
	seen := map[string]bool{}
	for range b.vfs {
		l := lease(t, p, "a")
		if seen[l.BDF] {
			t.Fatalf("%s leased twice", l.BDF)
		}
		seen[l.BDF] = true
		leases = append(leases, l)
	}
	_, err := p.Lease(sandbox("b"), vf.Want{})
	if !errors.Is(err, vf.ErrEmpty) || !strings.Contains(err.Error(), "leased") {
		t.Errorf("an empty pool said: %v", err)
	}
	for _, l := range leases {
		p.Return(l)
	}
	again := lease(t, p, "b")
	if again.Generation != 2 {
		t.Errorf("generation %d of the second lease of %s, want 2", again.Generation, again.BDF)
	}
}

func (b bench) testLateReturn(t *testing.T) {
	p := open(t, b.config(t))
	var rest []vf.Lease
	for range b.vfs - 1 {
		rest = append(rest, lease(t, p, "rest"))
	}
	first := lease(t, p, "first")
	p.Return(first)
	p.Return(first)
	second := lease(t, p, "second")
	if second.BDF != first.BDF || second.Generation != first.Generation+1 {
		t.Fatalf("leased %+v after %+v", second, first)
	}
	p.Return(first)
	if err := p.SetOwner(first, vf.Owner{Kind: vf.Sandbox, Name: "first", PID: 1}); err == nil {
		t.Error("an old lease got a new owner")
	}
	if s := status(t, p, second.BDF); s.State != vf.Leased || s.Owner.Name != "second" {
		t.Errorf("a late return touched the next tenant: %+v", s)
	}
	for _, l := range append(rest, second) {
		p.Return(l)
	}
}

func (b bench) testRestart(t *testing.T) {
	cfg := b.config(t)
	p := open(t, cfg)
	kept, ended := lease(t, p, "kept"), lease(t, p, "ended")
	owner := vf.Owner{Kind: vf.Sandbox, Name: "kept", PID: 42, StartTicks: 7}
	if err := p.SetOwner(kept, owner); err != nil {
		t.Fatal(err)
	}
	p.Close()

	p = open(t, cfg)
	found := map[string]vf.Lease{}
	for _, l := range p.Leases() {
		found[l.Owner.Name] = l
	}
	kept.Owner = owner
	if l := found["kept"]; l != kept {
		t.Errorf("found %+v, leased %+v", l, kept)
	}
	if l := found["ended"]; l.BDF != ended.BDF || l.Generation != ended.Generation ||
		len(found) != 2 {
		t.Errorf("found %+v, leased %+v", found, ended)
	}
	if n := count(p, vf.Idle); n != b.vfs-2 {
		t.Errorf("%d idle after a restart, want %d", n, b.vfs-2)
	}
	p.Return(found["kept"])
	p.Return(found["ended"])
	for range b.vfs {
		lease(t, p, "new")
	}
}

// A VF whose group a process still holds is not reset under it, and comes back when the process
// lets go.
func (b bench) testHeld(t *testing.T) {
	cfg := b.config(t)
	quarantined := make(chan struct{}, 1)
	cfg.Log = slog.New(notify{"VF quarantined", quarantined})
	p := open(t, cfg)
	l := lease(t, p, "a")
	group, err := b.hold(l.Group)
	if err != nil {
		t.Fatal(err)
	}
	p.Return(l)
	<-quarantined
	// A second later it is prepared again, in vain.
	s := status(t, p, l.BDF)
	waits := s.State == vf.Quarantined && strings.Contains(s.Reason, "some process holds")
	if s.ResetFailures < 1 || !waits && s.State != vf.Preparing {
		t.Errorf("a held VF is shown as %+v", s)
	}
	if err := group.Close(); err != nil {
		t.Fatal(err)
	}
	for range b.vfs {
		lease(t, p, "b")
	}
}

// notify is a log handler that tells of one message.
type notify struct {
	message string
	seen    chan struct{}
}

func (n notify) Enabled(context.Context, slog.Level) bool { return true }
func (n notify) WithAttrs([]slog.Attr) slog.Handler       { return n }
func (n notify) WithGroup(string) slog.Handler            { return n }
func (n notify) Handle(_ context.Context, r slog.Record) error {
	if r.Message == n.message {
		select {
		case n.seen <- struct{}{}:
		default:
		}
	}
	return nil
}

func (b bench) testOneAgent(t *testing.T) {
	cfg := b.config(t)
	p := open(t, cfg)
	if _, err := vf.Open(t.Context(), cfg); err == nil ||
		!strings.Contains(err.Error(), "another agent") {
		t.Errorf("a second pool said: %v", err)
	}
	if err := vf.Undo(cfg); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("an undo beside a pool said: %v", err)
	}
	p.Close()
	open(t, cfg)
}

func (b bench) testUndo(t *testing.T) {
	cfg := b.config(t)
	p := open(t, cfg)
	l := lease(t, p, "a")
	group, err := b.hold(l.Group)
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if err := vf.Undo(cfg); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("an undo under a tenant said: %v", err)
	}
	if b.driver(l.BDF) != "vfio-pci" {
		t.Error("an undo that refuses has changed something")
	}
	if err := group.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := vf.Undo(cfg); err != nil {
			t.Fatal(err)
		}
	}
	if b.driver(l.BDF) != "" {
		t.Errorf("%s is still there after the undo", l.BDF)
	}
	if left, err := os.ReadDir(cfg.Run); err == nil && len(left) > 0 {
		t.Errorf("an undo left %v in the run directory", left)
	}
}
