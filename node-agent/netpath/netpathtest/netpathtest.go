// Package netpathtest is the suite of startup.NetPath. Each path to the network runs it.
package netpathtest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// A Subject is a path that is put to the test.
type Subject struct {
	// Open opens the path, as an agent does that starts. close does what an agent does that ends
	// and leaves its sandboxes alone.
	Open func() (p startup.NetPath, close func(), err error)
	Kind string
	NICs int // that the path has, none of them leased
	// Settle returns once NICs that were returned can be leased again. nil: at once.
	Settle func()
}

// Run runs the suite. It has no subtests, so it may run in a bubble of testing/synctest.
func (s Subject) Run(t *testing.T) {
	t.Helper()
	c := check{T: t, Subject: s}
	c.open()
	leased := c.eachHasOne()
	c.laterAgentFinds(leased)
	c.lateReturnTouchesNobody(leased[0])
	for _, l := range c.path.Left() {
		c.path.Return(l)
	}
	if left := c.path.Left(); len(left) != 0 {
		t.Errorf("all were returned, and left is %+v", left)
	}
	c.close()
}

type check struct {
	*testing.T
	Subject
	path  startup.NetPath
	close func()
}

func (c *check) open() {
	c.Helper()
	var err error
	if c.path, c.close, err = c.Open(); err != nil {
		c.Fatal(err)
	}
}

func (c *check) settle() {
	if c.Settle != nil {
		c.Settle()
	}
}

// eachHasOne has three times as many sandboxes ask at once as there are NICs, and returns the
// leases by number.
func (c *check) eachHasOne() (leased []startup.Lease) {
	c.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	for n := range 3 * c.NICs {
		all.Go(func() {
			id := fmt.Sprintf("sandbox-%d", n)
			l, err := c.path.Lease(id)
			mu.Lock()
			defer mu.Unlock()
			var lacking *startup.Lacking
			switch {
			case err == nil && l.ID == id && l.NIC.Kind == c.Kind:
				leased = append(leased, l)
			case err == nil || !errors.As(err, &lacking) || lacking.Lack != startup.LackNIC:
				c.Errorf("%s leased %+v, %v", id, l, err)
			}
		})
	}
	all.Wait()
	numberOf := func(l startup.Lease) int { return l.Number }
	slices.SortFunc(leased, func(a, b startup.Lease) int { return numberOf(a) - numberOf(b) })
	one := slices.CompactFunc(slices.Clone(leased),
		func(a, b startup.Lease) bool { return numberOf(a) == numberOf(b) })
	if len(leased) != c.NICs || len(one) != c.NICs {
		c.Fatalf("of %d NICs these were leased: %+v", c.NICs, leased)
	}
	return leased
}

func recordOf(l startup.Lease) sandbox.Record {
	return sandbox.Record{
		Spec: sandbox.Spec{ID: l.ID}, PID: 4242 + l.Number, StartTicks: uint64(7 + l.Number),
	}
}

// laterAgentFinds writes down a process for each lease, and has a later agent find them all.
func (c *check) laterAgentFinds(leased []startup.Lease) {
	c.Helper()
	for _, l := range leased {
		if err := c.path.Own(l, recordOf(l)); err != nil {
			c.Errorf("the process of %s: %v", l.ID, err)
		}
	}
	c.close()
	c.open()
	left := c.path.Left()
	slices.SortFunc(left, func(a, b startup.Lease) int { return a.Number - b.Number })
	if len(left) != len(leased) {
		c.Fatalf("left is %+v, want %+v", left, leased)
	}
	for i, l := range left {
		was, rec := leased[i], recordOf(leased[i])
		if l.ID != was.ID || l.Number != was.Number || l.Generation != was.Generation ||
			l.NIC.Device() != was.NIC.Device() || l.PID != rec.PID ||
			l.StartTicks != rec.StartTicks {
			c.Errorf("left is %+v, want %+v of process %d", l, was, rec.PID)
		}
	}
}

// lateReturnTouchesNobody leases the NIC of was to another sandbox. Whoever still has was can then
// neither return it nor write down a process.
func (c *check) lateReturnTouchesNobody(was startup.Lease) {
	c.Helper()
	c.path.Return(was)
	c.path.Return(was)
	c.settle()
	next, err := c.path.Lease("next")
	if err != nil || next.Number != was.Number || next.Generation == was.Generation {
		c.Fatalf("leased %+v, %v, after %+v was returned", next, err, was)
	}
	c.path.Return(was)
	c.settle()
	if l, err := c.path.Lease("late"); err == nil {
		c.Errorf("a late return of %+v freed %+v", was, l)
	}
	if err := c.path.Own(was, recordOf(was)); err == nil {
		c.Errorf("%+v was returned, and got a process", was)
	}
	if err := c.path.Own(next, recordOf(next)); err != nil {
		c.Error(err)
	}
}
