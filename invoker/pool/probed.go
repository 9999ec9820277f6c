package pool

import "time"

// Rest has a sandbox take no demands from now on, or take them again: whoever probes it knows. What
// it has under way goes on, and it counts as one of its group that lives.
func (p *Pool) Rest(id string, rests bool) {
	p.happen(func(s *state, now time.Time) {
		if b := s.box(id); b != nil && b.group != nil {
			s.setRest(b, rests, now)
		}
	})
}

func (s *state) setRest(b *box, rests bool, now time.Time) {
	b.rests = rests
	s.file(b, now)
	s.tell(b)
}

// Fail ends a sandbox, with what is under way in it, as one that has failed.
func (p *Pool) Fail(id string, why error) {
	p.happen(func(s *state, now time.Time) {
		if b := s.box(id); b != nil && b.phase != starting {
			s.fail(b, why, now)
			p.stop(b.node, id)
		}
	})
}

func (s *state) fail(b *box, why error, now time.Time) {
	s.crashed(b, why, now)
	s.drop(b, now)
}

// box returns a sandbox by its id, or nil.
func (s *state) box(id string) *box {
	for _, n := range s.nodes {
		if b := n.boxes[id]; b != nil {
			return b
		}
	}
	return nil
}
