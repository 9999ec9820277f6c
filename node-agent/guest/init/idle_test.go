package main

import (
	"testing"
	"time"
)

func TestIdleness(t *testing.T) {
	at := func(since, idle time.Duration) uptime {
		return uptime{since * time.Millisecond, idle * time.Millisecond}
	}
	for _, c := range []struct {
		name     string
		from, to uptime
		cpus     int
		want     time.Duration
	}{
		{"one CPU that works", at(100, 10), at(600, 10), 1, 0},
		{"one CPU that idles", at(100, 10), at(600, 490), 1, 480},
		{"one of two works", at(100, 10), at(600, 510), 2, 0},
		{"both idle", at(100, 10), at(600, 1010), 2, 500},
		{"both idle half of it, perhaps not at once", at(0, 0), at(100, 100), 2, 0},
		{"counted a little too much", at(100, 0), at(200, 110), 1, 100},
	} {
		if got := c.from.idleUntil(c.to, c.cpus); got != c.want*time.Millisecond {
			t.Errorf("%s: %v, want %v ms", c.name, got, c.want)
		}
	}
	if got, err := parseUptime("12.34 56.78\n"); err != nil || got != at(12340, 56780) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := parseUptime("soon"); err == nil {
		t.Error("that is no uptime")
	}
	if u := readUptime(); u.since <= 0 || u.idle <= 0 {
		t.Errorf("this machine's is %+v", u)
	}
}

// Only the first end of the measuring counts.
func TestIdlenessIsSettledOnce(t *testing.T) {
	i := idleness{from: uptime{since: -time.Hour, idle: -1000 * time.Hour}}
	first := i.settle()
	i.from = uptime{}
	if again := i.settle(); first < time.Hour || again != first {
		t.Errorf("%v, then %v", first, again)
	}
}
