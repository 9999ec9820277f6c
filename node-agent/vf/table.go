package vf

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A State is where a VF is in its life; the package comment draws the moves.
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
	Idle:        {Leased, Resetting, Gone},
	Leased:      {Resetting, Gone},
	Resetting:   {Idle, Quarantined, Gone},
	Quarantined: {Preparing, Gone},
	Gone:        {Unbound},
}

// States are all of them, in the order of a VF's life.
var States = []State{Unbound, Preparing, Idle, Leased, Resetting, Quarantined, Gone}

// Why a Lease was refused. The error that wraps one of these carries the numbers.
var (
	ErrEmpty    = errors.New("no idle VF")
	ErrLinkDown = errors.New("no VF on a PF with a link")
)

// choose picks the VF to lease: the one that has been idle longest, on a PF whose link is up.
func choose(vfs []*function) (*function, error) {
	var best, cut *function
	for _, v := range vfs {
		switch {
		case v.state != Idle:
		case !v.pf.linkUp:
			cut = v
		case best == nil || v.since.Before(best.since):
			best = v
		}
	}
	switch {
	case best != nil:
		return best, nil
	case cut != nil:
		return nil, fmt.Errorf("%w: %s has no carrier; check its cable or switch port (%s)", ErrLinkDown, cut.pf, census(vfs))
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

// retryAt is when a VF that failed that many times in a row is tried again: after 1 s, 2 s, 4 s …, at most 5 min.
func retryAt(failures int, now time.Time) time.Time {
	wait := lastRetry
	if shift := max(failures, 1) - 1; shift < 9 {
		wait = min(firstRetry<<shift, lastRetry)
	}
	return now.Add(wait)
}

// move takes v to a state. A move that the table does not know is a bug that could give one VF to two tenants: it panics, and what
// the journal says survives.
func (v *function) move(to State, reason string, now time.Time) {
	if !slices.Contains(allowed[v.state], to) {
		panic(fmt.Sprintf("vf: %s cannot move from %s to %s", v.bdf, v.state, to))
	}
	v.log.Debug("VF moves", "vf", v.bdf, "from", v.state, "to", to, "after", now.Sub(v.since), "reason", reason)
	v.state, v.since, v.reason = to, now, reason
}
