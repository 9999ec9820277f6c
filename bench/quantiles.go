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
	return Quantiles{
		Count: len(values), Min: values[0], Median: rank(values, 0.5), P90: rank(values, 0.9),
		P99: rank(values, 0.99), Max: values[len(values)-1],
	}
}

// Quartiles are by nearest rank, too.
type Quartiles struct {
	Q1     float64 `json:"q1"`
	Median float64 `json:"median"`
	Q3     float64 `json:"q3"`
}

// QuartilesOf sorts values in place.
func QuartilesOf(values []float64) Quartiles {
	if len(values) == 0 {
		return Quartiles{}
	}
	slices.Sort(values)
	return Quartiles{rank(values, 0.25), rank(values, 0.5), rank(values, 0.75)}
}

func rank(sorted []float64, q float64) float64 {
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
