package vf_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/node-agent/vf/vftest"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// An act is one thing that may happen to a pool; pick chooses among the VFs or leases it may happen to.
type act struct {
	what string
	pick int
}

var acts = []string{"lease", "lease", "lease", "return", "return", "late return", "late return", "own", "fault", "restart", "cable", "unload", "load", "resets fail",
	"resets work", "wait", "wait", "wait long"}

// Whatever happens in whatever order, the invariants of the package comment hold after each step, and in the end no VF is lost.
func TestAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		plan := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) act {
			return act{rapid.SampledFrom(acts).Draw(rt, "what"), rapid.IntRange(0, 1000).Draw(rt, "pick")}
		}), 1, 40).Draw(rt, "plan")
		pf := vftest.IGB
		pf.VFs = rapid.IntRange(1, 3).Draw(rt, "VFs")
		var failed error
		synctest.Test(t, func(t *testing.T) { failed = play(t, pf, plan) })
		if failed != nil {
			rt.Fatal(failed)
		}
	})
}

// A model is what must be true of the pool, by the simplest means: the leases handed out and not returned.
type model struct {
	tree       *vftest.Tree
	cfg        vf.Config
	pool       *vf.Pool
	live       map[string]vf.Lease // by address
	old        []vf.Lease
	generation map[string]uint64
}

func play(t *testing.T, pf vftest.PF, plan []act) error {
	m := &model{tree: makeTree(t, pf), live: map[string]vf.Lease{}, generation: map[string]uint64{}}
	m.tree.ResetTime = 100 * time.Millisecond
	m.cfg = m.tree.Config()
	var err error
	if m.pool, err = vf.Open(t.Context(), m.cfg); err != nil {
		return err
	}
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
	return m.end(t, pf)
}

func (m *model) do(t *testing.T, a act, pf vftest.PF) error {
	switch a.what {
	case "lease":
		return m.lease(fmt.Sprintf("s%d", a.pick))
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
		_ = m.tree.SetCarrier(pf.Netdev, a.pick%2 == 0) // there is no netdev while the PF has no driver
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
	case "resets work":
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

func (m *model) lease(sandbox string) error {
	l, err := m.pool.Lease(vf.Owner{Sandbox: sandbox})
	if errors.Is(err, vf.ErrEmpty) || errors.Is(err, vf.ErrLinkDown) {
		return nil
	}
	if err != nil {
		return err
	}
	if other, taken := m.live[l.BDF]; taken {
		return fmt.Errorf("%s was leased to %s and is leased to %s", l.BDF, other.Owner.Sandbox, sandbox)
	}
	if l.Generation <= m.generation[l.BDF] {
		return fmt.Errorf("generation %d of %s after %d", l.Generation, l.BDF, m.generation[l.BDF])
	}
	m.live[l.BDF], m.generation[l.BDF] = l, l.Generation
	return nil
}

// restart is the end of an agent at this instant and the start of the next. Where it cannot start, because the PF has no driver, the
// PF gets one first.
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
	found := pool.Found()
	if len(found) != len(m.live) {
		return fmt.Errorf("found %v, want %v", found, m.live)
	}
	for _, l := range found {
		if want := m.live[l.BDF]; l.Owner != want.Owner || l.Generation != want.Generation {
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
		if live != (s.Owner.Sandbox != "") || live && s.Owner != l.Owner {
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
	return nil
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
	return nil
}
