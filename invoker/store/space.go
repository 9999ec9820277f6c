package store

import "fmt"

// A Space measures the documents of a namespace: what they take, or the most that they may take. In
// a bound, 0 means no bound.
type Space struct {
	Entities  int64 // how many there are
	Documents int64 // bytes of their bodies, which every invoker keeps decoded in memory
	Code      int64 // bytes of their code
}

// Unbounded is the Space of a Put without a bound.
var Unbounded Space

// Plus returns the sum of both.
func (s Space) Plus(t Space) Space {
	return Space{s.Entities + t.Entities, s.Documents + t.Documents, s.Code + t.Code}
}

// Full is the error of a Put for which the namespace has no room.
type Full struct {
	What       string // one of the following
	Then, Most int64
}

// The parts of a Space that a namespace can run out of, in the order of the fields of Space.
const (
	ManyEntities  = "entities"
	LargeEntities = "bytes of entities"
	MuchCode      = "bytes of code"
)

func (f *Full) Error() string {
	return fmt.Sprintf("the namespace would hold %d %s; at most %d", f.Then, f.What, f.Most)
}

// Allow returns a *Full if a namespace that takes now may not take then.
func (most Space) Allow(now, then Space) error {
	for _, bound := range [...]struct {
		what            string
		now, then, most int64
	}{
		{ManyEntities, now.Entities, then.Entities, most.Entities},
		{LargeEntities, now.Documents, then.Documents, most.Documents},
		{MuchCode, now.Code, then.Code, most.Code},
	} {
		if bound.most > 0 && bound.then > bound.most && bound.then > bound.now {
			return &Full{bound.what, bound.then, bound.most}
		}
	}
	return nil
}
