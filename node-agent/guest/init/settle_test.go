package main

import (
	"testing"
	"time"
)

// A guest that ran while its agent was away keeps its clock; one that was paused, or whose host's
// clock was set, takes the host's.
func TestAClockThatIsRightIsNotSetBack(t *testing.T) {
	told := time.Unix(1_800_000_000, 0)
	for ahead, keeps := range map[time.Duration]bool{
		0: true, 3 * time.Second: true,
		-time.Millisecond: false, -time.Hour: false, time.Hour: false,
	} {
		if got := cameLate(told.Add(ahead), told); got != keeps {
			t.Errorf("a guest that is %v ahead keeps its clock: %t, want %t", ahead, got, keeps)
		}
	}
}
