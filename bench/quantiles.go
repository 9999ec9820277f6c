package bench

import (
	"math"
	"slices"
)

// Quantiles are the quantiles of a set of figures by nearest rank, so each is a figure that
// occurred.
type Quantiles struct {
	Count  int     `json:"count"`
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
	P99    float64 `json:"p99"`
	Max    float64 `json:"max"`
}

// QuantilesOf sorts values in place.
func QuantilesOf(values []float64) Quantiles {
	if len(values) == 0 {
		return Quantiles{}
	}
	slices.Sort(values)
	rank := func(q float64) float64 {
		return values[max(0, int(math.Ceil(q*float64(len(values))))-1)]
	}
	return Quantiles{
		Count: len(values), Min: values[0], Median: rank(0.5), P90: rank(0.9), P99: rank(0.99),
		Max: values[len(values)-1],
	}
}
