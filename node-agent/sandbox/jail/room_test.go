package jail

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestRoomsAreMadeAheadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var tries atomic.Int32
		s := newStock(func(int) (room, error) {
			if tries.Add(1) <= 9 {
				return room{}, errors.New("too many open files")
			}
			return room{}, nil
		}, 1, slog.New(slog.NewTextHandler(&log, nil)))
		defer s.close()
		time.Sleep(59 * time.Second) // tries came after 1, 3, 7, 15 and 31 s
		synctest.Wait()
		if tries.Load() != 6 {
			t.Errorf("%d tries in 59 s, want 6", tries.Load())
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(s.rooms) != 1 {
			t.Errorf("%d rooms in stock after %d tries, want 1", len(s.rooms), tries.Load())
		}
		for line, want := range map[string]int{"no room can be made": 1, "made ahead again": 1} {
			if got := strings.Count(log.String(), line); got != want {
				t.Errorf("%q is in the log %d times, want %d", line, got, want)
			}
		}
	})
}

func TestTheStockLeavesFilesToOthers(t *testing.T) {
	for _, c := range []struct {
		size    int
		mayOpen uint64
		want    int
	}{{8, 1 << 20, 8}, {256, 1024, 64}, {8, 8, 0}} {
		if got := stockable(c.size, c.mayOpen); got != c.want {
			t.Errorf("%d rooms where %d files may be open: %d, want %d",
				c.size, c.mayOpen, got, c.want)
		}
	}
}

func TestNoStepFollowsOneThatFailed(t *testing.T) {
	var todo script
	failed := errors.New("not private")
	todo.do("", func() error { return nil })
	todo.do("mount", func() error { return failed })
	todo.do("umount", func() error {
		t.Error("a step ran after one had failed")
		return nil
	})
	todo.mount("tmpfs", t.TempDir(), "none such", 0, "")
	if !errors.Is(todo.failed, failed) {
		t.Errorf("it failed with %v, want %v", todo.failed, failed)
	}
}
