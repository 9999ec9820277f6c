package vf

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A State is a step in a VF's life; the package comment draws the moves.
type State string

const (
	Unbound     State = "unbound"
	Preparing   State = "preparing"
	Idle        State = "idle"
	Leased      State = "leased"
	Resetting   State = "resetting"
	Quarantined State = "quarantined"
	Gone        State = "gone"
)

// allowed is every move there is.
var allowed = map[State][]State{
	Unbound:     {Preparing, Gone},
	Preparing:   {Idle, Quarantined, Gone},
	Idle:        {Leased, Resetting, Preparing, Gone},
	Leased:      {Resetting, Preparing, Gone},
	Resetting:   {Idle, Quarantined, Gone},
	Quarantined: {Preparing, Gone},
	Gone:        {Unbound},
}

// A Driver names the driver that a VF is bound to while it is idle or leased.
type Driver string

const (
	VFIO   Driver = "vfio"   // vfio-pci: a process that opens its group has the device
	Netdev Driver = "netdev" // the kernel's own for such a VF, which makes an interface of it
)

// back returns the state in which v comes back from a tenant. One that left vfio-pci has to be
// bound to it again before it is reset, and one with settings of its tenant's has to be set again.
func (v *function) back() State {
	if v.driver == Netdev || v.settings != nil {
		return Preparing
	}
	return Resetting
}

// States lists all of them, in the order of a VF's life.
var States = []State{Unbound, Preparing, Idle, Leased, Resetting, Quarantined, Gone}

// Why a Lease was refused. The error that wraps one of these carries the numbers.
var (
	ErrEmpty    = errors.New("no idle VF")
	ErrLinkDown = errors.New("no VF on a PF with a link")
)

// fits reports whether v is such a VF, be it idle or not.
func (w Want) fits(v *function) bool {
	bound := v.home == w.Driver || w.Kept && w.Driver == ""
	return (w.BDF == "" || w.BDF == v.bdf) &&
		(bound || w.Driver == Netdev && !w.Kept && v.pf.netdev != "")
}

// better reports whether v is to be leased rather than another one that fits: one that need not be
// bound first, or else the one that has been idle for longer.
func (w Want) better(v, other *function) bool {
	if kept := v.home == w.Driver; kept != (other.home == w.Driver) {
		return kept
	}
	return v.since.Before(other.since)
}

// choose picks the best VF among those that are idle, fit, and whose PF has its link up.
func choose(vfs []*function, want Want) (*function, error) {
	fit := make([]*function, 0, len(vfs))
	for _, v := range vfs {
		if want.fits(v) {
			fit = append(fit, v)
		}
	}
	if len(fit) == 0 && len(vfs) > 0 {
		what := strings.TrimSpace("VF " + want.BDF)
		if want.Driver != "" {
			what += " by " + string(want.Driver)
		}
		if want.Kept && want.Driver == Netdev {
			what += " that is kept so; give the agent --netdev-vfs"
		}
		return nil, fmt.Errorf("%w: the pool has no %s; `fastiov vf watch` shows what it has",
			ErrEmpty, what)
	}
	vfs = fit
	var best, cut *function
	for _, v := range vfs {
		switch {
		case v.state != Idle:
		case !v.pf.linkUp:
			cut = v
		case best == nil || want.better(v, best):
			best = v
		}
	}
	switch {
	case best != nil:
		return best, nil
	case cut != nil:
		return nil, fmt.Errorf("%w: %s has no carrier; check its cable or switch port (%s)",
			ErrLinkDown, cut.pf, census(vfs))
	}
	return nil, fmt.Errorf("%w: %s", ErrEmpty, census(vfs))
}

// census says in one line where the VFs are, with one example of what went wrong.
func census(vfs []*function) string {
	count := map[State]int{}
	example := ""
	for _, v := range vfs {
		count[v.state]++
		if v.state == Quarantined && example == "" {
			example = fmt.Sprintf("; %s: %s", v.bdf, v.reason)
		}
	}
	var parts []string
	for _, s := range States {
		if count[s] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count[s], s))
		}
	}
	return fmt.Sprintf("%d VFs: %s%s", len(vfs), strings.Join(parts, ", "), example)
}

const (
	firstRetry  = time.Second
	lastRetry   = 5 * time.Minute
	faultsBorne = 3 // in a row; the VF is quarantined then
)

// retryAt returns the time when a VF that failed that many times in a row is tried again: after 1
// s, 2 s, 4 s …, at most 5 min.
func retryAt(failures int, now time.Time) time.Time {
	wait := lastRetry
	if shift := max(failures, 1) - 1; shift < 9 {
		wait = min(firstRetry<<shift, lastRetry)
	}
	return now.Add(wait)
}

// move takes v to a state. A move that the table does not know is a bug that could give one VF to
// two tenants. It panics, and what the journal says survives.
func (v *function) move(to State, reason string, now time.Time) {
	if !slices.Contains(allowed[v.state], to) {
		panic(fmt.Sprintf("vf: %s cannot move from %s to %s", v.bdf, v.state, to))
	}
	v.log.Debug("VF moves", "vf", v.bdf, "from", v.state, "to", to, "after", now.Sub(v.since),
		"reason", reason)
	v.state, v.since, v.reason = to, now, reason
}

// move is the move of a VF of the pool, which its readers are shown.
func (p *Pool) move(v *function, to State, reason string, now time.Time) {
	v.move(to, reason, now)
	p.tell(v)
}
