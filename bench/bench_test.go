package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "hold" { // this binary runs as a holder
		var hold Hold
		if err := json.Unmarshal([]byte(os.Args[2]), &hold); err != nil {
			panic(err)
		}
		open := func() error {
			if hold.BDF == "broken" {
				return fmt.Errorf("it is broken")
			}
			return nil
		}
		if err := HoldVF(hold, func() error { return nil }, open); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestQuantilesAreFiguresThatWereSeen(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   Quantiles
	}{
		{nil, Quantiles{}},
		{[]float64{5}, Quantiles{Count: 1, Min: 5, Median: 5, P90: 5, P99: 5, Max: 5}},
		{[]float64{4, 1, 3, 2}, Quantiles{Count: 4, Min: 1, Median: 2, P90: 4, P99: 4, Max: 4}},
	} {
		if got := QuantilesOf(c.values); got != c.want {
			t.Errorf("%v: got %+v, want %+v", c.values, got, c.want)
		}
	}
}

func TestVFOpen(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := &VFOpen{
		Holder: []string{self, "hold"}, VFs: []GroupVF{{"g", "a"}, {"g", "b"}, {"g", "broken"}},
		N: []int{1, 2}, Rounds: 2, Out: io.Discard,
	}
	r, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range b.N {
		if p := r.Points[i]; p.N != n || p.LastFD.Count != 2 || p.PerVF.Count != 2*n ||
			p.PerVF.Min <= 0 || p.Attached.LastFD.Count != 2 || p.Attached.PerVF.Count != 2*n {
			t.Errorf("n=%d: %+v", n, p)
		}
	}
	b.N = []int{3}
	if _, err := b.Run(t.Context()); err == nil {
		t.Error("a holder that cannot open its VF does not fail the benchmark")
	}
	b.N = []int{4}
	if _, err := b.Run(t.Context()); err == nil {
		t.Error("more holders than VFs do not fail the benchmark")
	}
}

func TestSummarise(t *testing.T) {
	r := BurstResult{Starts: []Start{
		{EndToEnd: 10, Coverage: 0.9, StagesMs: map[timeline.Stage]float64{timeline.VMM: 9, timeline.Unattributed: 1}},
		{EndToEnd: 20, Coverage: 1, StagesMs: map[timeline.Stage]float64{timeline.VMM: 20}},
	}}
	r.summarise()
	if q := r.Stages[timeline.Unattributed]; q.Count != 2 || q.Min != 0 || q.Max != 1 {
		t.Errorf("a start without a stage must count as none of it: %+v", q)
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var keys map[string]any
	if err := json.Unmarshal(b, &keys); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"requested", "answered", "leaked", "stages", "stage_coverage"} {
		if _, ok := keys[k]; !ok {
			t.Errorf("no key %q in %s", k, b)
		}
	}
}
