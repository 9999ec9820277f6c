package knative

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// walked is over, second by second.
func (l *load) walked(window time.Duration, now time.Time) (average, rate float64, most int) {
	l.count(now)
	begun := now.Add(-window)
	if begun.Before(l.first) {
		begun = l.first
	}
	for _, s := range l.seconds {
		if s.number < begun.Unix() || s.number > now.Unix() {
			continue
		}
		part := 1.0
		if s.number == begun.Unix() && begun != l.first {
			part = 1 - float64(begun.Nanosecond())/float64(time.Second)
		}
		average, rate, most = average+part*s.area, rate+part*s.came, max(most, s.most)
	}
	if length := now.Sub(begun).Seconds(); length > 0 {
		return average / length, rate / max(length, 1), most
	}
	return float64(l.requests), rate, most
}

// What is asked of a load is what its seconds say, whatever has come and gone, and whenever.
func TestALoadIsWhatItsSecondsSay(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var l load
	l.remember(time.Minute)
	now := epoch
	for n := range 20_000 {
		switch random.IntN(100) {
		case 0:
			now = now.Add(time.Duration(random.IntN(150)) * time.Second)
		case 1:
			l.remember(time.Duration(20+random.IntN(60)) * time.Second)
		default:
			now = now.Add(time.Duration(random.IntN(400)) * time.Millisecond)
		}
		if l.requests > 0 && random.IntN(2) == 0 {
			l.add(-1, now)
		} else {
			l.add(1, now)
		}
		for _, window := range []time.Duration{6 * time.Second, 20 * time.Second} {
			average, rate, most := l.over(window, now)
			a, r, m := l.walked(window, now)
			if math.Abs(average-a) > 1e-9 || math.Abs(rate-r) > 1e-9 || most != m {
				t.Fatalf("after %d: %g, %g a second, %d at most; its seconds say %g, %g, %d",
					n, average, rate, most, a, r, m)
			}
		}
	}
}

// The seconds of a window are added up once in each second, however often it is asked.
func TestAWindowIsAddedUpOnceASecond(t *testing.T) {
	var l load
	l.remember(time.Hour)
	l.add(1, epoch)
	now := epoch.Add(time.Hour / 2)
	before, _, _ := l.over(time.Hour, now)
	for i := range l.seconds { // who looked at these would see them
		l.seconds[i].area += 1000
	}
	l.seconds[now.Unix()%int64(len(l.seconds))].area -= 1000
	l.seconds[epoch.Unix()%int64(len(l.seconds))].area -= 1000
	if again, _, _ := l.over(time.Hour, now); again != before {
		t.Errorf("%g, and a moment before %g", again, before)
	}
	if later, _, _ := l.over(time.Hour, now.Add(time.Second)); later < 10 {
		t.Errorf("%g: the seconds of a window are never looked at", later)
	}
}
