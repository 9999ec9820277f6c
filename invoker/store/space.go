package store

import "fmt"

// A Space is what the documents of a namespace take, or may take: then 0 is any number.
type Space struct {
	Entities  int64 // how many there are
	Documents int64 // bytes of their bodies, which every invoker keeps decoded in memory
	Code      int64 // bytes of their code
}

// Unbounded is the Space of a Put that nothing bounds.
var Unbounded Space

// Plus is the sum of both.
func (s Space) Plus(t Space) Space {
	return Space{s.Entities + t.Entities, s.Documents + t.Documents, s.Code + t.Code}
}

// A Full is the error of a Put that its namespace has no room for.
type Full struct {
	What       string // one of the following
	Then, Most int64
}

// What a namespace can be full of, in the order of a Space.
const (
	ManyEntities  = "entities"
	LargeEntities = "bytes of entities"
	MuchCode      = "bytes of code"
)

func (f *Full) Error() string {
	return fmt.Sprintf("the namespace would hold %d %s; at most %d", f.Then, f.What, f.Most)
}

// Allow is a *Full where a namespace that takes now may not take then.
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
