package bench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
	"github.com/fastiov/fastiov/node-agent/sandbox/sim"
)

// started returns a start that took ms: the first half in queue, the rest in vmm except for the
// last tenth.
func started(ms int) Start {
	t0 := time.Unix(1_000_000, 0)
	at := func(share float64) time.Time {
		return t0.Add(time.Duration(share * float64(ms) * float64(time.Millisecond)))
	}
	return Start{Begin: t0, End: at(1), EndToEnd: float64(ms), Spans: []timeline.Span{
		{Stage: timeline.Queue, Begin: t0, End: at(0.5)}, {Stage: timeline.VMM, Begin: at(0.5), End: at(0.9)},
	}}
}

func TestWaterfall(t *testing.T) {
	got := waterfall([]Start{started(1000), started(500), started(0)}, 33, false)
	want := strings.Join([]string{
		"                           0.0 ms",
		"qqqqqvvvv·               500.0 ms",
		"qqqqqqqqqqvvvvvvvv··    1000.0 ms",
		"q queue  v vmm  · unattributed  ", "", "",
	}, "\n")
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if coloured := waterfall([]Start{started(1000)}, 33, true); !strings.Contains(coloured,
		"\x1b[38;5;16;48;5;245mqqqqqqqqqq\x1b[0m") {
		t.Errorf("%q", coloured)
	}
}

func TestABurstOfManyIsShownByFew(t *testing.T) {
	var all []Start
	for ms := range 200 {
		all = append(all, started(ms))
	}
	some := spread(all, mostBars)
	if len(some) != mostBars || some[0].EndToEnd != 0 || some[mostBars-1].EndToEnd != 199 {
		t.Errorf("%d bars, from %v to %v", len(some), some[0].EndToEnd, some[len(some)-1].EndToEnd)
	}
}

func TestEveryStageHasALetterOfItsOwn(t *testing.T) {
	seen := map[rune]timeline.Stage{}
	for _, stage := range timeline.Order {
		look := looks[stage]
		if other, taken := seen[look.letter]; taken || look.letter == 0 {
			t.Errorf("%s has the letter %q of %s", stage, look.letter, other)
		}
		seen[look.letter] = stage
	}
}

func TestTheBar(t *testing.T) {
	for _, c := range []struct {
		answered, bad, total int
		want                 string
	}{
		{0, 0, 200, strings.Repeat("·", 40) + "  0/200 answered"},
		{100, 50, 200, strings.Repeat("█", 20) + strings.Repeat("▒", 10) + strings.Repeat("·", 10) + "  100/200 answered, 50 not"},
		{7, 0, 7, strings.Repeat("█", 40) + "  7/7 answered"},
	} {
		if got := barOf(c.answered, c.bad, c.total); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestWhereNoTerminalIsProgressIsLines(t *testing.T) {
	var out strings.Builder
	p := newProgress(&out, 2)
	p.show(1, 0)
	p.round("burst  round 1/1")
	p.stop()
	if got := out.String(); got != "burst  round 1/1  0s\n" {
		t.Errorf("%q", got)
	}
}

func TestHoldAgainst(t *testing.T) {
	r := &BurstResult{}
	for _, ms := range []float64{107, 104, 95.5} {
		r.Starts = append(r.Starts, Start{StagesMs: map[timeline.Stage]float64{timeline.VMM: ms,
			timeline.VFIODev: 10 + (ms - 100)}})
	}
	told := []sim.Step{
		{Stage: timeline.VMM, Takes: 100 * time.Millisecond},
		{Stage: timeline.VFIODev, Takes: 10 * time.Millisecond},
	}
	r.holdAgainst(told, nil)
	if got := fmt.Sprint(r.Told[timeline.VMM]); got != "{100 4 7 <nil> true}" {
		t.Errorf("5 ms of 100 are allowed: %s", got)
	}
	if r.Told[timeline.VFIODev].Within || r.AsTold() {
		t.Errorf("2 ms of 10 are allowed: %+v", r.Told[timeline.VFIODev])
	}
	r.holdAgainst(told, map[timeline.Stage]float64{timeline.VMM: 106})
	if got := r.Told[timeline.VMM]; got.Within || *got.PrometheusOff != 6 {
		t.Errorf("what Prometheus says is held to the same: %+v", got)
	}
	if none := (&BurstResult{}); !none.AsTold() {
		t.Error("who was told nothing did something else")
	}
}
