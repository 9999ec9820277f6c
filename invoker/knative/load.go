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
}

type second struct {
	number int64
	area   float64 // requests, each times the seconds that it was there
	came   float64
	most   int
}

// remember has the load hold that window from now on.
func (l *load) remember(window time.Duration) {
	former := l.seconds
	l.seconds = make([]second, int(window/time.Second)+2)
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
