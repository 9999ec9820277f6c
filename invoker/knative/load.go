package knative

import "time"

// A load holds how many requests a revision had at once, and how many came, second by second, for
// the longest window that is asked for and the second under way.
type load struct {
	requests int       // now
	until    time.Time // they are counted
	last     time.Time // there were any
	first    time.Time // the first request after a window without any
	seconds  []second  // by the second's number, modulo their own

	sums map[time.Duration]sum // by window: what its whole seconds hold
}

type second struct {
	number int64
	area   float64 // requests, each times the seconds that it was there
	came   float64
	most   int
}

func (s *second) add(o second, part float64) {
	s.area, s.came, s.most = s.area+part*o.area, s.came+part*o.came, max(s.most, o.most)
}

// A sum holds what the seconds between two hold. All of them are over, so it changes no more.
type sum struct {
	from, to int64
	of       second
}

// remember has the load hold that window from now on.
func (l *load) remember(window time.Duration) {
	former := l.seconds
	l.seconds, l.sums = make([]second, int(window/time.Second)+2), map[time.Duration]sum{}
	for _, s := range former {
		if now := &l.seconds[s.number%int64(len(l.seconds))]; s.number > now.number {
			*now = s
		}
	}
}

// add takes in that a request has come or, with -1, has gone.
func (l *load) add(requests int, now time.Time) {
	if l.count(now); now.Sub(l.last) > time.Duration(len(l.seconds))*time.Second {
		l.first = now
	}
	l.last = now
	s := l.at(now)
	if l.requests += requests; requests > 0 {
		s.came++
	}
	s.most = max(s.most, l.requests)
}

// count counts the requests there are as having been there until now.
func (l *load) count(now time.Time) {
	for from := l.until; l.requests > 0 && from.Before(now); {
		to := from.Truncate(time.Second).Add(time.Second)
		if to.After(now) {
			to = now
		}
		s := l.at(from)
		s.area += float64(l.requests) * to.Sub(from).Seconds()
		s.most = max(s.most, l.requests)
		from, l.last = to, now
	}
	if l.until.Before(now) {
		l.until = now
	}
}

func (l *load) at(when time.Time) *second {
	number := when.Unix()
	s := &l.seconds[number%int64(len(l.seconds))]
	if s.number != number {
		*s = second{number: number}
	}
	return s
}

// over returns, for the window that ends now, how many requests there were on average, how many
// came in a second, and how many there were at most.
func (l *load) over(window time.Duration, now time.Time) (average, rate float64, most int) {
	l.count(now)
	begun := now.Add(-window)
	if begun.Before(l.first) {
		begun = l.first
	}
	part := 1.0
	if begun != l.first {
		part = 1 - float64(begun.Nanosecond())/float64(time.Second)
	}
	from, to := begun.Unix(), now.Unix()
	s := l.between(window, from, to)
	s.add(l.of(from), part)
	if to > from {
		s.add(l.of(to), 1)
	}
	if length := now.Sub(begun).Seconds(); length > 0 {
		return s.area / length, s.came / max(length, 1), s.most
	}
	return float64(l.requests), s.came, s.most
}

// between adds up a window's whole seconds: once in each second, however often it is asked.
func (l *load) between(window time.Duration, from, to int64) second {
	if is := l.sums[window]; is.from == from && is.to == to {
		return is.of
	}
	var all second
	for number := from + 1; number < to; number++ {
		all.add(l.of(number), 1)
	}
	l.sums[window] = sum{from, to, all}
	return all
}

// of returns what a second holds.
func (l *load) of(number int64) second {
	if s := l.seconds[number%int64(len(l.seconds))]; s.number == number {
		return s
	}
	return second{}
}
