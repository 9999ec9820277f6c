package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// mostBars is the number of starts of a burst that a terminal shows.
const mostBars = 24

// How a stage looks on a terminal: a letter on one of 256 colours.
var looks = map[timeline.Stage]struct {
	letter rune
	colour int
}{
	timeline.Queue: {'q', 245}, timeline.Image: {'i', 137}, timeline.CNI: {'c', 106},
	timeline.Cgroup: {'0', 67}, timeline.VMM: {'v', 103},
	timeline.Runtime: {'r', 103},
	timeline.DMARAM:  {'1', 209}, timeline.Virtiofs: {'2', 215}, timeline.DMAImage: {'3', 176},
	timeline.VFIODev:   {'4', 75},
	timeline.GuestBoot: {'g', 79}, timeline.Agent: {'a', 114}, timeline.VFDriver: {'5', 205},
	timeline.AppInit:   {'n', 185},
	timeline.FirstByte: {'f', 141}, timeline.Unattributed: {'·', 240},
}

// printWaterfall draws starts as bars on a terminal, from the fastest to the slowest. Each begins
// when its call came in.
func (r *BurstResult) printWaterfall(w io.Writer) {
	columns, is := terminal(w)
	if !is || len(r.Starts) == 0 {
		return
	}
	fmt.Fprint(w, waterfall(r.Starts, columns, true))
}

func waterfall(starts []Start, columns int, colours bool) string {
	starts = spread(starts, mostBars)
	longest := starts[len(starts)-1].End.Sub(starts[len(starts)-1].Begin)
	wide := columns - len("  123456.7 ms")
	var out strings.Builder
	seen := map[timeline.Stage]bool{}
	for _, s := range starts {
		bar, length := 0, s.End.Sub(s.Begin)
		for _, piece := range timeline.Segments(s.Spans, s.Begin, s.End) {
			upTo := column(piece.End.Sub(s.Begin), longest, wide)
			if upTo == bar {
				continue
			}
			seen[piece.Stage] = true
			look := looks[piece.Stage]
			text := strings.Repeat(string(look.letter), upTo-bar)
			if colours {
				text = fmt.Sprintf("\x1b[38;5;16;48;5;%dm%s\x1b[0m", look.colour, text)
			}
			out.WriteString(text)
			bar = upTo
		}
		fmt.Fprintf(&out, "%s  %8.1f ms\n", strings.Repeat(" ", wide-bar),
			float64(length)/float64(time.Millisecond))
	}
	line := 0
	for _, stage := range timeline.Order {
		if !seen[stage] {
			continue
		}
		entry := fmt.Sprintf("%c %s  ", looks[stage].letter, stage)
		if line += utf8.RuneCountInString(entry); line > columns {
			out.WriteString("\n")
			line = utf8.RuneCountInString(entry)
		}
		out.WriteString(entry)
	}
	out.WriteString("\n\n")
	return out.String()
}

func column(d, longest time.Duration, wide int) int {
	return int(int64(d) * int64(wide) / int64(max(longest, 1)))
}

// spread returns n of the starts, or all if there are fewer: the fastest, the slowest, and evenly
// between.
func spread(starts []Start, n int) []Start {
	sorted := slices.SortedFunc(slices.Values(starts),
		func(a, b Start) int { return int(a.End.Sub(a.Begin) - b.End.Sub(b.Begin)) })
	if len(sorted) <= n {
		return sorted
	}
	some := make([]Start, n)
	for i := range some {
		some[i] = sorted[i*(len(sorted)-1)/(n-1)]
	}
	return some
}
