package controlplane

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// pairsOf returns pairs with a given true ratio. The two sides of a pair share some noise and each
// has noise of its own; in some slices the machine does something else.
func pairsOf(random *rand.Rand, n int, ratio float64) (base, head []float64) {
	for range n {
		shared := 30_000 * math.Exp(random.NormFloat64()/5)
		slice := func(scale float64) float64 {
			if random.IntN(20) == 0 {
				scale /= 3
			}
			return shared * scale * math.Exp(random.NormFloat64()/25)
		}
		base, head = append(base, slice(1)), append(head, slice(ratio))
	}
	return base, head
}

func TestTheIntervalHoldsTheTrueRatio(t *testing.T) {
	const runs, true95 = 100, 1.02
	random := rand.New(rand.NewPCG(3, 4))
	held, narrow := 0, 0
	for range runs {
		r := ratioOf(pairsOf(random, 100, true95))
		if r.Low <= true95 && true95 <= r.High {
			held++
		}
		if r.narrow() {
			narrow++
		}
	}
	if share := float64(held) / runs; share < 0.88 || share > 0.99 {
		t.Errorf("the interval holds the true ratio in %.3f of the runs", share)
	}
	if narrow < runs/2 {
		t.Errorf("only %d of %d intervals of 100 pairs are narrow", narrow, runs)
	}
}

func TestARegressionOfFivePercentIsSeen(t *testing.T) {
	r := ratioOf(pairsOf(rand.New(rand.NewPCG(5, 6)), 150, 0.95))
	if r.High >= 0.97 || r.Head >= r.Base {
		t.Errorf("%v, medians %.0f and %.0f", r, r.Base, r.Head)
	}
}

func TestEqualSidesAreOne(t *testing.T) {
	same := []float64{3, 1, 2}
	want := Ratio{Ratio: 1, Low: 1, High: 1, Base: 2, Head: 2}
	if r := ratioOf(same, same); r != want || !r.narrow() || same[0] != 3 {
		t.Errorf("%+v of %v", r, same)
	}
}

// A few pairs have a narrow interval by chance: that of one has no width.
func TestAFewPairsSettleNothing(t *testing.T) {
	for n, want := range map[int]bool{1: false, leastPairs - 1: false, leastPairs: true} {
		same := slices.Repeat([]float64{3}, n)
		one := &side{rates: same, perCPUs: same}
		c := &Compared{}
		if c.weigh([2]*side{one, one}); c.Settled != want {
			t.Errorf("%d pairs are settled: %v", n, c.Settled)
		}
	}
}
