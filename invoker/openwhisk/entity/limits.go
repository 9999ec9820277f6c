package entity

import "github.com/fastiov/fastiov/invoker/openwhisk/activation"

// A Bound is the range of one limit, and its standard value.
type Bound struct{ Min, Standard, Max int }

// Bounds holds the bounds of all limits of an action.
type Bounds struct{ TimeoutMs, MemoryMB, LogsMB, Concurrency Bound }

// OpenWhisks holds OpenWhisk's own bounds. The runtimes serve one call at a time. More calls would
// only queue in their sandbox while the time of each runs.
var OpenWhisks = Bounds{
	TimeoutMs:   Bound{100, 60_000, 300_000},
	MemoryMB:    Bound{128, 256, 512},
	LogsMB:      Bound{0, 10, 10},
	Concurrency: Bound{1, 1, 1},
}

// Standard returns the limits of an action that names none.
func (b *Bounds) Standard() activation.Limits {
	return activation.Limits{
		TimeoutMs: b.TimeoutMs.Standard, MemoryMB: b.MemoryMB.Standard, LogsMB: b.LogsMB.Standard,
		Concurrency: b.Concurrency.Standard,
	}
}

// AtMost returns the bounds with lower maxima for a namespace; 0 leaves a maximum as it is.
func (b Bounds) AtMost(timeoutMs, memoryMB, logsMB int) Bounds {
	for _, limit := range []struct {
		bound *Bound
		most  int
	}{{&b.TimeoutMs, timeoutMs}, {&b.MemoryMB, memoryMB}, {&b.LogsMB, logsMB}} {
		if limit.most > 0 {
			limit.bound.Max = max(min(limit.bound.Max, limit.most), limit.bound.Min)
			limit.bound.Standard = min(limit.bound.Standard, limit.bound.Max)
		}
	}
	return b
}

// Allow refuses an action that needs more.
func (b *Bounds) Allow(l *activation.Limits) error {
	for _, limit := range [...]struct {
		name      string
		has, most int
	}{{"timeout", l.TimeoutMs, b.TimeoutMs.Max}, {"memory", l.MemoryMB, b.MemoryMB.Max},
		{"logs", l.LogsMB, b.LogsMB.Max}} {
		if limit.has > limit.most {
			return bad("the action's limits.%s is %d; this namespace may run actions of at most %d",
				limit.name, limit.has, limit.most)
		}
	}
	return nil
}

// A LimitsChange is the limits of a PUT.
type LimitsChange struct {
	Timeout     *int `json:"timeout"`
	Memory      *int `json:"memory"`
	Logs        *int `json:"logs"`
	Concurrency *int `json:"concurrency"`
}

func (b *Bounds) apply(to *activation.Limits, by *LimitsChange) error {
	if by == nil {
		return nil
	}
	for _, limit := range []struct {
		name  string
		wants *int
		set   *int
		bound Bound
	}{
		{"timeout", by.Timeout, &to.TimeoutMs, b.TimeoutMs},
		{"memory", by.Memory, &to.MemoryMB, b.MemoryMB},
		{"logs", by.Logs, &to.LogsMB, b.LogsMB},
		{"concurrency", by.Concurrency, &to.Concurrency, b.Concurrency},
	} {
		if limit.wants == nil {
			continue
		}
		if *limit.wants < limit.bound.Min || *limit.wants > limit.bound.Max {
			return bad("limits.%s is %d; it must be from %d to %d", limit.name, *limit.wants,
				limit.bound.Min, limit.bound.Max)
		}
		*limit.set = *limit.wants
	}
	return nil
}
