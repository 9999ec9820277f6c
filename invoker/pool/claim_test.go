package pool

import "testing"

// A group whose last start has failed gives its claim up: it starts nothing for a while, and what
// was to end for it goes on.
func TestAGroupThatRestsClaimsNothing(t *testing.T) {
	s := newScene(t, Config{}, sized(unbounded, 700))
	for range 5 {
		s.begun(with(of("b", 100), func(d *Demand) { d.Namespace = "y" }))
	}
	a := with(of("a", 100), func(d *Demand) { d.Scaled = true })
	s.s.keep(&a, 3, 9, s.now)
	s.want("keep a", "keep a")
	s.call(a)
	s.call(a)
	s.pass(testPatience)
	s.want("claim a")
	s.started(s.boxes[6], false)
	s.want()
	s.started(s.boxes[5], true)
	s.want("warm a in b6")
	for _, b := range s.boxes[:5] {
		if b.claimed {
			t.Errorf("%s is to end for nobody", b.id)
		}
	}
}
