package controlplane

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fastiov/fastiov/bench"
)

func TestNumberAfterAWord(t *testing.T) {
	for text, want := range map[string]uint64{
		`{"metadata":{"resourceVersion":"1048577","x":"resourceVersion":"3"}}`: 1048577,
		`{"metadata":{"resourceVersion":"7`:                                    7,
		`{"metadata":{"resourceVersion":""}}`:                                  0,
		`{"metadata":{}}`:                                                      0,
	} {
		if got := numberAfter([]byte(text), versioned); got != want {
			t.Errorf("%s has %d, want %d", text, got, want)
		}
	}
}

// A ratio is of two turns in a row, and not of medians that are of different ones.
func TestRatiosAreOfTurnsInARow(t *testing.T) {
	got := beside([]float64{100, 30, 50}, []float64{10, 10, 50})
	if want := (bench.Quartiles{Q1: 1, Median: 3, Q3: 10}); got.Ratio != want {
		t.Errorf("ratio %v, want %v", got.Ratio, want)
	}
	folder := t.TempDir()
	if err := (&Against{Creates: got, Events: got}).Draw(folder); err != nil {
		t.Fatal(err)
	}
	for _, figure := range []string{"creates.svg", "events.svg"} {
		if is, err := os.Stat(filepath.Join(folder, figure)); err != nil || is.Size() < 1000 {
			t.Errorf("%s: %v, %v", figure, is, err)
		}
	}
}
