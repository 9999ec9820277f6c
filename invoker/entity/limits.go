package entity

import "github.com/fastiov/fastiov/invoker/activation"

// A Bound is what one limit may be.
type Bound struct{ Min, Standard, Max int }

// Bounds are what the limits of an action may be.
type Bounds struct{ TimeoutMs, MemoryMB, LogsMB, Concurrency Bound }

// OpenWhisks are its own bounds, but for the calls that one sandbox may serve at once, which OpenWhisk leaves to its operator.
var OpenWhisks = Bounds{
	TimeoutMs:   Bound{100, 60_000, 300_000},
	MemoryMB:    Bound{128, 256, 512},
	LogsMB:      Bound{0, 10, 10},
	Concurrency: Bound{1, 1, 200},
}

// Standard are the limits of an action that names none.
func (b *Bounds) Standard() activation.Limits {
	return activation.Limits{
		TimeoutMs: b.TimeoutMs.Standard, MemoryMB: b.MemoryMB.Standard, LogsMB: b.LogsMB.Standard, Concurrency: b.Concurrency.Standard,
	}
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
			return bad("limits.%s is %d; it must be from %d to %d", limit.name, *limit.wants, limit.bound.Min, limit.bound.Max)
		}
		*limit.set = *limit.wants
	}
	return nil
}
