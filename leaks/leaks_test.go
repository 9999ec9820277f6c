package leaks

import (
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

func stays(until <-chan struct{}) { <-until }

// A goroutine that ends late is not left behind.
func TestWhatEndsIsNotLeft(t *testing.T) {
	end := make(chan struct{})
	go stays(end)
	if err := find(0); err == nil || !strings.Contains(err.Error(), "leaks.stays") {
		t.Errorf("of a goroutine that is there it says %v", err)
	}
	time.AfterFunc(time.Second, func() { close(end) })
	None(t)
}
