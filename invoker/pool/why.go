package pool

import (
	"fmt"
	"time"
)

// A Lack says what a job waits for.
type Lack string

const (
	Placeable Lack = "its turn has come"
	NoNode    Lack = "no node in reach"
	NoVF      Lack = "no VF"
	NoPlace   Lack = "no place for another sandbox"
	NoMemory  Lack = "no memory"
	Reserved  Lack = "reserved for a job that has waited longer"
	MakesRoom Lack = "room is being made for it"
	AtMost    Lack = "its function has as many sandboxes as it may"
	Resting   Lack = "its function's last sandbox has failed: the next is started later"
)

// why says what a waiter waits for, and how many jobs of its namespace wait before it.
func (s *state) why(w *waiter, now time.Time) string {
	g := w.group
	lack := s.lack(g, now)
	said := string(lack)
	switch lack {
	case Placeable:
		if w.failed != nil {
			said = w.failed.why
		}
	case NoNode:
		for _, n := range s.nodes {
			if n.down != "" {
				said += ": " + n.down
				break
			}
		}
	case NoMemory:
		most := 0
		for _, n := range s.nodes {
			if n.up {
				most = max(most, n.avail().memory-n.overhead)
			}
		}
		said += fmt.Sprintf(": %d MiB are needed and %d are free", g.memory, most)
	}
	ahead := 0
	g.space.waiting.all(func(other *waiter) bool {
		if other == w {
			return false
		}
		ahead++
		return true
	})
	return fmt.Sprintf("%s, %d ahead", said, ahead)
}

func (s *state) lack(g *group, now time.Time) Lack {
	switch {
	case g.claim != nil:
		return MakesRoom
	case g.full():
		return AtMost
	case g.live > 0 && g.rests(now):
		return Resting
	}
	lack := NoNode
	for _, n := range s.nodes {
		if !n.up {
			continue
		}
		need := g.memory + n.overhead
		unclaimed := n.idle.and(n.free)
		switch {
		case n.avail().fits(need):
			return Placeable
		case unclaimed.fits(need):
			lack = Reserved
		case lack == Reserved:
		case unclaimed.sandboxes >= 1:
			lack = NoMemory
		case lack == NoMemory:
		case n.hasVFs:
			lack = NoVF
		default:
			lack = NoPlace
		}
	}
	return lack
}

func tooMany(s *space) string {
	return fmt.Sprintf(
		"%d jobs of namespace %q wait already, which is the most that may", s.waiting.n, s.name)
}

// A Snapshot shows what the pool is doing.
type Snapshot struct {
	Queue     map[Lack]int    // jobs that wait, by what for
	Boxes     map[string]int  // sandboxes by phase; stem cells that idle as "stem"
	Decisions map[Kind]uint64 // since the pool was made
	Nodes     []NodeState
}

// A NodeState is one node as the pool sees it.
type NodeState struct {
	Name     string
	State    string // up, draining, or why it is out of reach
	Boxes    int
	FreeMiB  int
	FreeMore int // sandboxes that it could hold besides, as far as VFs go
}

func (s *state) snapshot(now time.Time) Snapshot {
	shot := Snapshot{
		Queue: map[Lack]int{}, Boxes: map[string]int{"stem": 0}, Decisions: map[Kind]uint64{},
	}
	for _, p := range phases {
		shot.Boxes[string(p)] = 0
	}
	for _, k := range Kinds {
		shot.Decisions[k] = s.counts[k]
	}
	for _, c := range s.classes {
		for _, l := range c.lines {
			l.groups.all(func(g *group) bool {
				shot.Queue[s.lack(g, now)] += g.waiting.n
				return true
			})
		}
	}
	s.full.all(func(g *group) bool { shot.Queue[s.lack(g, now)] += g.waiting.n; return true })
	for _, n := range s.nodes {
		state := "up"
		switch {
		case n.down != "":
			state = n.down // whether it drained when it was last seen or not
		case n.draining:
			state = "draining"
		}
		shot.Nodes = append(shot.Nodes, NodeState{
			n.name, state, len(n.boxes), n.free.memory, n.free.sandboxes,
		})
		s.eachBox(n, func(b *box) {
			if b.group == nil && b.idles() {
				shot.Boxes["stem"]++
				return
			}
			shot.Boxes[string(b.phase)]++
		})
	}
	return shot
}
