package express

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/fastiov/fastiov/bench/kept"
)

// A Bench plays loads by all arms in rounds.
type Bench struct {
	Loads   []string // empty: all
	Arms    []string // empty: those that are of interest for each load
	Rounds  int
	Budget  time.Duration // of CPU time, of a load in a round
	Version string        // of fastiov
	Command []string      // makes the process of an arm's host; the arm's name follows
	Kept    *kept.Rounds[Round]
	Out     io.Writer

	hosts   map[string]*remote
	missing map[string]bool
}

// A Round holds what came of one load by one arm.
type Round struct {
	Load  string    `json:"load"`
	Arm   string    `json:"arm"`
	Run   time.Time `json:"run"` // when its run began
	Round int       `json:"round"`
	On    string    `json:"on"` // the machine and its kernel
	// of fastiov, whose express path it is; empty: it was not noted
	Version string `json:"version"`
	Measure
}

// LoadNames lists all loads.
func LoadNames() (names []string) {
	for _, l := range loads() {
		names = append(names, l.Name)
	}
	return names
}

// Run plays the rounds, adds them to those that are kept, and returns what all came to.
func (b *Bench) Run(ctx context.Context) (_ *Result, err error) {
	b.hosts, b.missing = map[string]*remote{}, map[string]bool{}
	defer func() {
		for _, h := range b.hosts {
			err = errors.Join(err, h.close())
		}
	}()
	played, err := b.played()
	if err != nil {
		return nil, err
	}
	run, on := time.Now().UTC(), machine()
	if err := b.of(on); err != nil {
		return nil, err
	}
	for round := range b.Rounds {
		for _, l := range played {
			arms := l.arms
			if len(b.Arms) > 0 {
				arms = b.Arms
			}
			for _, arm := range turned(arms, round) {
				if b.missing[arm] || b.missing[arm+l.Name] {
					continue
				}
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				m, err := b.play(ctx, l.Name, arm)
				if errors.Is(err, errMissing) {
					fmt.Fprintf(b.Out, "scon  left out: %s of %s: %v\n", l.Name, arm, err)
					continue
				}
				if err != nil {
					return nil, fmt.Errorf("%s by %s: %w", l.Name, arm, err)
				}
				if err := b.Kept.Add(Round{Load: l.Name, Arm: arm, Run: run, Round: round, On: on,
					Version: b.Version, Measure: m}); err != nil {
					return nil, err
				}
			}
		}
		fmt.Fprintf(b.Out, "scon  round %d of %d after %.0f s\n", round+1, b.Rounds,
			time.Since(run).Seconds())
	}
	return resultOf(b.Kept.All), nil
}

// turned has the arms in turn, forwards and backwards: nobody always follows the same.
func turned(arms []string, round int) []string {
	arms = slices.Clone(arms)
	if round%2 == 1 {
		slices.Reverse(arms)
	}
	return arms
}

// played returns the loads that are asked for; a name may end with a *.
func (b *Bench) played() (all []load, err error) {
	if len(b.Loads) == 0 {
		return loads(), nil
	}
	for _, name := range b.Loads {
		found := false
		prefix, any := strings.CutSuffix(name, "*")
		for _, l := range loads() {
			if l.Name == name || any && strings.HasPrefix(l.Name, prefix) {
				all, found = append(all, l), true
			}
		}
		if !found {
			return nil, fmt.Errorf("there is no load %q; there are %s", name,
				strings.Join(LoadNames(), ", "))
		}
	}
	return all, nil
}

// play plays one load. An arm or a load that this machine cannot have is left out from then on.
func (b *Bench) play(ctx context.Context, load, arm string) (m Measure, err error) {
	h := b.hosts[arm]
	if h == nil {
		if h, err = start(ctx, b.Command, arm); err != nil {
			b.missing[arm] = errors.Is(err, errMissing)
			return m, err
		}
		b.hosts[arm] = h
	}
	m, err = h.play(load, b.Budget)
	b.missing[arm+load] = errors.Is(err, errMissing)
	return m, err
}

// of refuses rounds of another machine or kernel, and those of another fastiov.
func (b *Bench) of(machine string) error {
	for _, r := range b.Kept.All {
		if r.On != machine || r.Version != b.Version {
			return fmt.Errorf("%s has rounds of %s by fastiov %s, and this is %s by fastiov %s:"+
				" name another folder", b.Kept.File(), r.On,
				cmp.Or(r.Version, "of an unnoted version"), machine, b.Version)
		}
	}
	return nil
}
