package pool

import (
	"testing"
	"time"
)

func idled(minutes ...float64) *Idles {
	h := &Idles{}
	for _, m := range minutes {
		h.add(time.Duration(m * float64(time.Minute)))
	}
	return h
}

func repeated(minutes float64, n int) []float64 {
	var list []float64
	for range n {
		list = append(list, minutes)
	}
	return list
}

func TestHistogramWindows(t *testing.T) {
	const otherwise = 10 * time.Minute
	everyMinute := []float64{}
	for m := range bins {
		everyMinute = append(everyMinute, float64(m))
	}
	for _, c := range []struct {
		about string
		idles []float64
		want  Window
	}{
		{"nothing is known", nil, Window{KeepAlive: otherwise}},
		{"too little is known", repeated(30, fewest-1), Window{KeepAlive: otherwise}},
		{"a timer every half hour: gone at once, back after 27 minutes, until the 31st and its margin",
			repeated(30.5, 20),
			Window{PreWarm: 27 * time.Minute, KeepAlive: 7*time.Minute + 6*time.Second}},
		{"calls within seconds: kept, for one minute and its margin", repeated(0.1, 20), Window{KeepAlive: 66 * time.Second}},
		{"mostly seconds, a few of an hour: kept through the hour",
			append(repeated(0.1, 50), repeated(60, 5)...),
			Window{KeepAlive: 61 * 66 * time.Second}},
		{"one in a thousand late: not waited for", append(repeated(0.1, 1000), 200), Window{KeepAlive: 66 * time.Second}},
		{"any idle time is as likely as any other", everyMinute, Window{KeepAlive: otherwise}},
		{"most are longer than can be counted", append(repeated(30, 10), repeated(1000, 11)...), Window{KeepAlive: otherwise}},
	} {
		if got := (Histogram{otherwise}).Window(idled(c.idles...)); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.about, got, c.want)
		}
	}
	if got := Fixed(otherwise).Window(nil); got != (Window{KeepAlive: otherwise}) {
		t.Errorf("fixed: %+v", got)
	}
}

func TestIdlesForgetByHalves(t *testing.T) {
	h := &Idles{}
	for range 1 << 16 {
		h.add(0)
	}
	h.add(time.Hour)
	sum, squares := 0, 0
	for _, n := range h.counts {
		sum, squares = sum+int(n), squares+int(n)*int(n)
	}
	if h.within != sum || h.squares != squares || h.counts[0] != 1<<15 {
		t.Errorf("%d in the first bin; %d and %d kept, %d and %d counted",
			h.counts[0], h.within, h.squares, sum, squares)
	}
}
