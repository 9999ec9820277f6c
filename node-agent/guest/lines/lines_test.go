package lines

import (
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/fastiov/fastiov/node-agent/guest/wire"
)

const sentinel = "XXX_THE_END_OF_A_WHISK_ACTIVATION_XXX"

func TestSplitLines(t *testing.T) {
	const end = sentinel
	long := strings.Repeat("x", wire.MaxText)
	piece, more := long[len(end):], strings.Repeat("y", 100)
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"nothing", "", nil},
		{"lines", "a\n\nb\n", []string{"a", "", "b"}},
		{"no last newline", "a\nb", []string{"a", "b"}},
		{"a sentinel with its newline", "a\n" + end + "\nb\n", []string{"a", end, "b"}},
		{"a sentinel on an unfinished line", "a" + end + "\n\nb\n", []string{"a" + end, "", "b"}},
		{"a line of the longest length", long + "\n", []string{long}},
		{"a long line", piece + more + "\n", []string{piece, more}},
		{"a sentinel where a long line is cut", piece[5:] + end + more + "\n", []string{piece[5:], end + more}},
		{"a letter where a long line is cut", piece[1:] + "é" + more + "\n", []string{piece[1:], "é" + more}},
	} {
		var got []string
		Split(strings.NewReader(c.text), end, func(s string) { got = append(got, s) })
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %.100q, want %.100q", c.name, got, c.want)
		}
	}
}

// A sentinel is emitted when it is there: its writer may write no newline and wait for the next
// activation.
func TestSentinelWithoutNewline(t *testing.T) {
	text := "a\n" + sentinel + "b\n"
	var got []string
	byByte := iotest.OneByteReader(strings.NewReader(text))
	Split(byByte, sentinel, func(s string) { got = append(got, s) })
	if want := []string{"a", sentinel, "b"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Where there is no mark, a long line is cut where it is longest.
func TestLinesWithoutAMark(t *testing.T) {
	long := strings.Repeat("x", wire.MaxText)
	var got []string
	text := "a" + sentinel + "\n" + long + "y\n"
	Split(strings.NewReader(text), "", func(s string) { got = append(got, s) })
	if want := []string{"a" + sentinel, long, "y"}; !slices.Equal(got, want) {
		t.Errorf("%.100q", got)
	}
}

// However the bytes arrive, none is lost, no piece is too long and no sentinel is torn.
func TestSplitLinesKeepsAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.SampledFrom([]string{
			"\n", "x", "XXX", sentinel, sentinel + "\n", strings.Repeat("y", wire.MaxText-20), "é",
		})
		words := rapid.SliceOfN(word, 0, 20).Draw(t, "words")
		text := strings.Join(words, "")
		r := &chunks{text: text, size: func() int {
			return rapid.IntRange(1, 9000).Draw(t, "chunk")
		}}
		var got []string
		Split(r, sentinel, func(s string) { got = append(got, s) })
		sentinels := 0
		for _, s := range got {
			sentinels += strings.Count(s, sentinel)
			if len(s) > wire.MaxText {
				t.Fatalf("a piece of %d bytes", len(s))
			}
		}
		if want := strings.Count(text, sentinel); sentinels != want {
			t.Fatalf("%d sentinels of %d", sentinels, want)
		}
		if strings.Join(got, "") != strings.ReplaceAll(text, "\n", "") {
			t.Fatal("text was lost")
		}
	})
}

type chunks struct {
	text string
	size func() int
}

func (c *chunks) Read(p []byte) (int, error) {
	if c.text == "" {
		return strings.NewReader("").Read(p)
	}
	n := copy(p, c.text[:min(c.size(), len(c.text))])
	c.text = c.text[n:]
	return n, nil
}
