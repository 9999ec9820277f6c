package express

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/bench"
	"github.com/fastiov/fastiov/bench/kept"
)

func rounds(load, arm string, costs ...float64) (all []Round) {
	for n, cost := range costs {
		all = append(all, Round{Load: load, Arm: arm, Round: n, Measure: Measure{Messages: 10,
			CPUNs: 10 * cost, WallNs: 1e9}})
	}
	return all
}

func TestRatiosAreOfRoundsAtTheSameTime(t *testing.T) {
	all := rounds("udp-64", Native, 10, 20, 40)
	all = append(all, rounds("udp-64", Bridge, 20, 40, 80)...)
	all = append(all, rounds("udp-64", Express, 10, 25, 40, 1000)...)
	other := rounds("udp-64", Native, 7)
	other[0].Run = time.Unix(1, 0) // has no round of another arm
	r := resultOf(append(all, other...))
	if r.Runs != 2 {
		t.Errorf("%d runs", r.Runs)
	}
	c := r.cell("udp-64", Express)
	if want := (bench.Quartiles{Q1: 0.8, Median: 1, Q3: 1}); c == nil || c.OfNative != want {
		t.Fatalf("of native: %+v", c)
	}
	if want := (bench.Quartiles{Q1: 1.6, Median: 2, Q3: 2}); c.OfBridge != want {
		t.Errorf("of the bridge: %+v", c.OfBridge)
	}
	if c.CPUNs.Median != 25 || c.Rounds != 4 || c.PerSecond != 10 {
		t.Errorf("%+v", c)
	}
}

func TestRunsAreJoined(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "rounds")
	for n, r := range rounds("tcp-64", Bridge, 1, 2) {
		k, err := kept.Open[Round](dir, "rounds")
		if err != nil {
			t.Fatal(err)
		}
		r.On, r.Version = "here", "one"
		if err := k.Add(r); err != nil {
			t.Fatal(err)
		}
		b := Bench{Kept: k, Version: "one"}
		for _, version := range []string{"", "another"} {
			if (&Bench{Kept: k, Version: version}).of("here") == nil {
				t.Errorf("rounds of fastiov one are pooled with those of %q", version)
			}
		}
		if len(k.All) != n+1 || b.of("here") != nil || b.of("there") == nil {
			t.Errorf("%d rounds: %+v", n, k.All)
		}
		k.Close()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = f.WriteString(`{"load":"tcp-64","ar`) // the run was killed here
		f.Close()
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), "\n") != 2 {
		t.Errorf("%s, %v", text, err)
	}
}

func TestALoadIsNamed(t *testing.T) {
	b := Bench{Loads: []string{"rr-tcp-*", "crr"}}
	all, err := b.played()
	if err != nil || len(all) != 4 {
		t.Errorf("%d loads, %v", len(all), err)
	}
	b.Loads = []string{"nothing"}
	if _, err := b.played(); err == nil || !strings.Contains(err.Error(), "udp-64") {
		t.Errorf("an unknown load: %v", err)
	}
}
