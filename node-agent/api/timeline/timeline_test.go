package timeline

import (
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var t0 = time.Unix(1_000_000, 0)

func at(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
func span(stage Stage, from, to int) Span {
	return Span{Stage: stage, Begin: at(from), End: at(to)}
}
func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

func TestAttribute(t *testing.T) {
	for _, c := range []struct {
		name  string
		spans []Span
		want  map[Stage]time.Duration
	}{
		{"nothing", nil, map[Stage]time.Duration{Unattributed: ms(100)}},
		{"one after the other", []Span{span(Queue, 0, 40), span(VMM, 40, 100)}, map[Stage]time.Duration{Queue: ms(40), VMM: ms(60)}},
		{"a gap", []Span{span(Queue, 0, 40), span(VMM, 60, 100)}, map[Stage]time.Duration{Queue: ms(40), VMM: ms(40), Unattributed: ms(20)}},
		{"nested: the inner one has it", []Span{span(VMM, 0, 100), span(VFIODev, 20, 50)}, map[Stage]time.Duration{VMM: ms(70), VFIODev: ms(30)}},
		{"overlapping: the later has it", []Span{span(Agent, 0, 60), span(VFDriver, 40, 100)}, map[Stage]time.Duration{Agent: ms(40), VFDriver: ms(60)}},
		{"reaching over both ends", []Span{span(VMM, -50, 150)}, map[Stage]time.Duration{VMM: ms(100)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Attribute(c.spans, at(0), at(100)); !maps.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestCoverage(t *testing.T) {
	if got := Coverage(Attribute([]Span{span(Queue, 0, 95)}, at(0), at(100)),
		at(0), at(100)); got != 0.95 {
		t.Errorf("coverage %v, want 0.95", got)
	}
	if got := Coverage(nil, at(0), at(0)); got != 1 {
		t.Errorf("coverage of no time is %v, want 1", got)
	}
}

func TestBeginEndsOnce(t *testing.T) {
	var tl Timeline
	end := tl.Begin(Image)
	end()
	end()
	if n := len(tl.Spans()); n != 1 {
		t.Errorf("%d spans, want 1", n)
	}
}

func TestProgressShowsWhatIsOpen(t *testing.T) {
	var tl Timeline
	tl.Begin(Image)()
	end := tl.Begin(VMM)
	if s := tl.Progress(); len(s) != 2 || s[0].Stage != Image || s[1].Stage != VMM ||
		!s[1].End.IsZero() {
		t.Errorf("%+v; want image, and vmm without an end", s)
	}
	end()
	if s := tl.Progress(); len(s) != 2 || s[1].End.IsZero() {
		t.Errorf("%+v; want both ended", s)
	}
}

func TestWhatIsShownIsNotRecorded(t *testing.T) {
	var tl Timeline
	tl.Show(VMM)
	tl.Show(GuestBoot)
	if s := tl.Progress(); len(s) != 2 || s[0].End.IsZero() || !s[1].End.IsZero() {
		t.Errorf("%+v; want vmm ended and guest-boot open", s)
	}
	if s := tl.Spans(); len(s) != 0 {
		t.Errorf("%+v was recorded", s)
	}
	tl.Show("")
	if s := tl.Progress(); len(s) != 0 {
		t.Errorf("%+v is still shown", s)
	}
}

func TestAddKeepsABackwardSpanEmpty(t *testing.T) {
	var tl Timeline
	tl.Add(span(GuestBoot, 50, 40))
	if s := tl.Spans()[0]; s.End != s.Begin {
		t.Errorf("span is %v long", s.End.Sub(s.Begin))
	}
}

// Whatever the spans, the shares add up to the whole and none is negative.
func TestAttributeSumsToTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var spans []Span
		for range rapid.IntRange(0, 12).Draw(t, "spans") {
			from := rapid.IntRange(-20, 120).Draw(t, "from")
			spans = append(spans, span(rapid.SampledFrom(Order).Draw(t, "stage"), from, from+
				rapid.IntRange(0, 60).Draw(t, "length")))
		}
		var sum time.Duration
		for stage, d := range Attribute(spans, at(0), at(100)) {
			if d < 0 {
				t.Fatalf("%s has %v", stage, d)
			}
			sum += d
		}
		at := at(0)
		for _, s := range Segments(spans, t0, t0.Add(ms(100))) {
			if !s.Begin.Equal(at) || !s.End.After(s.Begin) {
				t.Fatalf("a piece from %v to %v after %v", s.Begin, s.End, at)
			}
			at = s.End
		}
		if sum != ms(100) {
			t.Fatalf("the stages of %v sum to %v", spans, sum)
		}
	})
}
