package vf_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/node-agent/vf/vftest"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// An act is one thing that may happen to a pool. pick chooses among the VFs or leases it may happen
// to.
type act struct {
	what string
	pick int
}

var acts = []string{
	"lease", "lease", "lease", "lease a netdev", "lease a netdev", "lease one of them",
	"lease with settings",
	"return", "return", "return", "late return", "late return", "own", "fault", "restart",
	"cable", "unload", "load",
	"resets fail", "binds fail", "all works", "wait", "wait", "wait long", "read",
}

// Whatever happens in whatever order, the invariants of the package comment hold after each step,
// and in the end no VF is lost.
func TestAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		plan := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) act {
			return act{rapid.SampledFrom(acts).Draw(rt, "what"),
				rapid.IntRange(0, 1000).Draw(rt, "pick")}
		}), 1, 40).Draw(rt, "plan")
		pf := vftest.IGB
		pf.VFs = rapid.IntRange(1, 3).Draw(rt, "VFs")
		kept := rapid.IntRange(0, 2).Draw(rt, "kept as netdevs")
		var failed error
		synctest.Test(t, func(t *testing.T) { failed = play(t, pf, kept, plan) })
		if failed != nil {
			rt.Fatal(failed)
		}
	})
}

// A model holds what must be true of the pool, by the simplest means: the leases handed out and not
// returned.
type model struct {
	tree       *vftest.Tree
	cfg        vf.Config
	pool       *vf.Pool
	live       map[string]vf.Lease // by address
	old        []vf.Lease
	generation map[string]uint64
	readers    []*reader // the first always reads, the second when it is told to
}

// A reader has the news that a Watch has shown it.
type reader struct {
	turn chan struct{} // it may go on; nil: it always may
	mu   sync.Mutex
	now  map[string]vf.Status
}

func (m *model) watch(t *testing.T) {
	m.readers = []*reader{{}, {turn: make(chan struct{}, 1)}}
	for _, r := range m.readers {
		r.now = map[string]vf.Status{}
		pool := m.pool
		go func() {
			for news := range pool.Watch(t.Context()) {
				r.mu.Lock()
				for _, n := range news {
					r.now[n.BDF] = n.Status
				}
				r.mu.Unlock()
				if r.turn != nil {
					select {
					case <-r.turn:
					case <-t.Context().Done():
						return
					}
				}
			}
		}()
	}
}

// read lets the slow reader catch up.
func (m *model) read() error {
	r := m.readers[1]
	for range 3 { // it may have stopped before or after the last change
		select {
		case r.turn <- struct{}{}:
		default:
		}
		synctest.Wait()
	}
	return m.shown(r)
}

// shown checks that a reader that has been able to read knows all.
func (m *model) shown(r *reader) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range m.pool.Snapshot() {
		if r.now[s.BDF] != s {
			return fmt.Errorf("a reader was shown %+v, it is %+v", r.now[s.BDF], s)
		}
	}
	return nil
}

func play(t *testing.T, pf vftest.PF, kept int, plan []act) error {
	m := &model{tree: makeTree(t, pf), live: map[string]vf.Lease{}, generation: map[string]uint64{}}
	m.tree.ResetTime = 100 * time.Millisecond
	m.cfg = m.tree.Config()
	m.cfg.NetdevVFs = kept
	var err error
	if m.pool, err = vf.Open(t.Context(), m.cfg); err != nil {
		return err
	}
	m.watch(t)
	defer func() { m.pool.Close() }()
	for i, a := range plan {
		if err := m.do(t, a, pf); err != nil {
			return fmt.Errorf("step %d, %s: %w", i, a.what, err)
		}
		synctest.Wait()
		if err := m.holds(); err != nil {
			return fmt.Errorf("after step %d, %s: %w", i, a.what, err)
		}
	}
	err = m.end(t, pf)
	if v := m.tree.Violations(); err == nil && v != "" {
		err = fmt.Errorf("in the end: %s", v)
	}
	return err
}

func (m *model) do(t *testing.T, a act, pf vftest.PF) error {
	switch a.what {
	case "lease":
		return m.lease(anyHolder(t, a.pick), vf.Want{})
	case "lease a netdev":
		return m.lease(anyHolder(t, a.pick), vf.Want{Driver: vf.Netdev})
	case "lease one of them":
		all := m.pool.Snapshot()
		return m.lease(anyHolder(t, a.pick), vf.Want{BDF: all[a.pick%len(all)].BDF})
	case "lease with settings":
		return m.lease(anyHolder(t, a.pick), vf.Want{Set: func(s *vf.Settings) { s.VLAN = 7 }})
	case "read":
		return m.read()
	case "return":
		if l, ok := m.pick(a.pick); ok {
			m.pool.Return(l)
			delete(m.live, l.BDF)
			m.old = append(m.old, l)
		}
	case "late return":
		if len(m.old) > 0 {
			m.pool.Return(m.old[a.pick%len(m.old)])
		}
	case "own":
		if l, ok := m.pick(a.pick); ok {
			l.Owner.PID = a.pick + 1
			m.live[l.BDF] = l
			return m.pool.SetOwner(l, l.Owner)
		}
	case "fault":
		all := m.pool.Snapshot()
		m.pool.Fault(all[a.pick%len(all)].BDF, "made up")
	case "restart":
		return m.restart(t)
	case "cable":
		// There is no netdev while the PF has no driver.
		_ = m.tree.SetCarrier(pf.Netdev, a.pick%2 == 0)
	case "unload":
		if m.tree.Driver(pf.BDF) != "" {
			return m.tree.Unload(pf.BDF)
		}
	case "load":
		if m.tree.Driver(pf.BDF) == "" {
			return m.tree.Load(pf.BDF)
		}
	case "resets fail":
		m.tree.Refuse(func(op, _ string) error {
			if op == "reset" {
				return unix.EIO
			}
			return nil
		})
	case "binds fail":
		m.tree.Refuse(func(op, _ string) error {
			if op == "probe" {
				return unix.EIO
			}
			return nil
		})
	case "all works":
		m.tree.Refuse(nil)
	case "wait":
		time.Sleep(150 * time.Millisecond)
	case "wait long":
		time.Sleep(time.Minute)
	}
	return nil
}

func (m *model) pick(n int) (vf.Lease, bool) {
	all := m.pool.Snapshot()
	for i := range all {
		if l, ok := m.live[all[(n+i)%len(all)].BDF]; ok {
			return l, true
		}
	}
	return vf.Lease{}, false
}

// anyHolder is one of any kind.
func anyHolder(t *testing.T, n int) vf.Owner {
	kind := vf.Kinds[n%len(vf.Kinds)]
	owner, err := vf.Process(kind, fmt.Sprint("h", n), os.Getpid())
	if err != nil {
		t.Error(err)
	}
	if kind == vf.Pod {
		owner = vf.Owner{Kind: kind, Name: owner.Name, Netns: "/proc/self/ns/net"}
	}
	return owner
}

func (m *model) lease(owner vf.Owner, want vf.Want) error {
	l, err := m.pool.Lease(owner, want)
	if errors.Is(err, vf.ErrEmpty) || errors.Is(err, vf.ErrLinkDown) || errors.Is(err, unix.EIO) {
		return nil
	}
	if err != nil {
		return err
	}
	if other, taken := m.live[l.BDF]; taken {
		return fmt.Errorf("%s was leased to %s and is leased to %s", l.BDF, other.Owner, owner)
	}
	if l.Generation <= m.generation[l.BDF] {
		return fmt.Errorf("generation %d of %s after %d", l.Generation, l.BDF, m.generation[l.BDF])
	}
	if driver := m.tree.Driver(l.BDF); (driver == "igbvf") != (want.Driver == vf.Netdev) ||
		(l.Interface == "") == (want.Driver == vf.Netdev) {
		return fmt.Errorf("%+v is bound to %s, wanted is %+v", l, driver, want)
	}
	m.live[l.BDF], m.generation[l.BDF] = l, l.Generation
	return nil
}

// restart ends an agent at this instant and starts the next. The next cannot start if the PF has no
// driver, so the PF gets one first.
func (m *model) restart(t *testing.T) error {
	m.pool.Close()
	if m.tree.Driver(vftest.IGB.BDF) == "" {
		if err := m.tree.Load(vftest.IGB.BDF); err != nil {
			return err
		}
	}
	pool, err := vf.Open(t.Context(), m.cfg)
	if err != nil { // all resets fail
		m.tree.Refuse(nil)
		if pool, err = vf.Open(t.Context(), m.cfg); err != nil {
			return err
		}
	}
	m.pool = pool
	m.watch(t)
	found := pool.Leases()
	if len(found) != len(m.live) {
		return fmt.Errorf("found %v, want %v", found, m.live)
	}
	for _, l := range found {
		want := m.live[l.BDF]
		if l.Owner != want.Owner || l.Driver != want.Driver || l.Generation != want.Generation {
			return fmt.Errorf("found %+v, want %+v", l, want)
		}
		if l.Gone {
			m.live[l.BDF] = l
		}
	}
	return nil
}

// holds checks the invariants.
func (m *model) holds() error {
	leased := 0
	for _, s := range m.pool.Snapshot() {
		l, live := m.live[s.BDF]
		if live && s.State == vf.Leased && s.Driver != l.Driver {
			return fmt.Errorf("%s is leased by %s, the model has %+v", s.BDF, s.Driver, l)
		}
		if live != (s.Owner.Name != "") || live && s.Owner != l.Owner {
			return fmt.Errorf("%s is %s of %+v, the model has %+v", s.BDF, s.State, s.Owner, l)
		}
		if live {
			leased++
			if err := m.journalled(l); err != nil {
				return err
			}
		}
	}
	if leased != len(m.live) {
		return fmt.Errorf("%d VFs leased, %d leases", leased, len(m.live))
	}
	if v := m.tree.Violations(); v != "" {
		return errors.New(v)
	}
	return m.shown(m.readers[0])
}

func (m *model) journalled(l vf.Lease) error {
	data, err := os.ReadFile(filepath.Join(m.cfg.Run, "vf", l.BDF+".json"))
	if err != nil {
		return err
	}
	var e struct {
		State      string
		Generation uint64
		Owner      vf.Owner
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return err
	}
	e.Owner.Kind = cmp.Or(e.Owner.Kind, vf.Sandbox)
	if e.State != "leased" || e.Generation != l.Generation || e.Owner != l.Owner {
		return fmt.Errorf("the journal of %s says %s, the lease is %+v", l.BDF, data, l)
	}
	return nil
}

// end lets everything work again and returns every lease: all VFs become idle.
func (m *model) end(t *testing.T, pf vftest.PF) error {
	m.tree.Refuse(nil)
	if m.tree.Driver(pf.BDF) == "" {
		if err := m.tree.Load(pf.BDF); err != nil {
			return err
		}
	}
	synctest.Wait()
	for _, l := range m.live {
		m.pool.Return(l)
	}
	time.Sleep(10 * time.Minute)
	synctest.Wait()
	if n := count(m.pool, vf.Idle); n != pf.VFs {
		return fmt.Errorf("%d of %d VFs are idle in the end: %+v", n, pf.VFs, m.pool.Snapshot())
	}
	for i := range pf.VFs {
		if s, err := m.tree.VF(pf.Netdev, i); err != nil || s.VLAN != 0 {
			return fmt.Errorf("VF %d is idle with a tenant's settings %+v, %w", i, s, err)
		}
	}
	return m.read()
}
