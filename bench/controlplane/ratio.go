package controlplane

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/fastiov/fastiov/bench"
)

// A Ratio is the head's figure divided by the base's, with its 95 % interval.
type Ratio struct {
	Ratio float64 `json:"ratio"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	Base  float64 `json:"base"` // median
	Head  float64 `json:"head"`
}

func (r Ratio) String() string {
	return fmt.Sprintf("%.3f (%.3f … %.3f)", r.Ratio, r.Low, r.High)
}

// narrow reports whether the interval is ± 1.5 % or less.
func (r Ratio) narrow() bool {
	const most = 0.015
	return r.Ratio > 0 && r.High/r.Ratio-1 <= most && 1-r.Low/r.Ratio <= most
}

// ratioOf returns the mean of the pairs' ratios, as logarithms, without a fifth of them at either
// end: a slice in which the machine did something else says nothing about the two. The interval
// contains that mean in 95 % of 1,000 draws of as many pairs with repetition. The draws are the
// same each time.
func ratioOf(base, head []float64) Ratio {
	logs := make([]float64, len(base))
	for i := range logs {
		logs[i] = math.Log(head[i] / base[i])
	}
	const draws = 1000
	random := rand.New(rand.NewPCG(1, 2))
	means, draw := make([]float64, draws), make([]float64, len(logs))
	for n := range means {
		for i := range draw {
			draw[i] = logs[random.IntN(len(logs))]
		}
		means[n] = trimmedMean(draw)
	}
	slices.Sort(means)
	return Ratio{
		Ratio: math.Exp(trimmedMean(logs)),
		Low:   math.Exp(means[draws*25/1000]),
		High:  math.Exp(means[draws*975/1000-1]),
		Base:  bench.QuantilesOf(slices.Clone(base)).Median,
		Head:  bench.QuantilesOf(slices.Clone(head)).Median,
	}
}

// trimmedMean sorts values in place.
func trimmedMean(values []float64) (mean float64) {
	slices.Sort(values)
	trim := len(values) / 5
	kept := values[trim : len(values)-trim]
	for _, v := range kept {
		mean += v / float64(len(kept))
	}
	return mean
}
