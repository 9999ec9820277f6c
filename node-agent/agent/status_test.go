package agent

import (
	"fmt"
	"slices"
	"testing"

	"github.com/fastiov/fastiov/node-agent/api"
	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/startup"
)

// A hasty driver has a sandbox start whenever somebody looks for what is left over; it calls every
// sandbox that it is not told of left over, and one that nobody knows. That one's process changes
// its name all the time.
type hasty struct {
	sandbox.Driver
	start func()
	has   []string
	looks int
}

func (h *hasty) Leftovers(live map[string]bool) (left []string) {
	h.start()
	h.looks++
	for _, id := range h.has {
		if !live[id] {
			left = append(left, "cgroup fastiov/"+id, "container "+id, "container "+id+".1",
				fmt.Sprintf("process 7 (name %d) of sandbox %s", h.looks, id))
		}
	}
	return left
}

// A start that enters while the status is made is nothing left over.
func TestAStartIsNothingLeftOver(t *testing.T) {
	a, d, _ := newAgent(t)
	a.Starter.Admission = startup.NewAdmission(1000, nil)
	h := &hasty{Driver: d, has: []string{"lost"}}
	ids := []string{"x", "y", "z"}
	h.start = func() {
		id := ids[0]
		ids = ids[1:]
		if _, err := start(t, a, id); err != nil {
			t.Error(err)
		}
		h.has = append(h.has, id)
	}
	a.Starter.Driver = h
	now, err := a.Status(t.Context(), &api.StatusRequest{})
	if err != nil || !slices.Equal(now.Leftovers, []string{"cgroup fastiov/lost",
		"container lost", "container lost.1", "process 7 (name 1) of sandbox lost"}) {
		t.Errorf("left over: %q, %v", now.GetLeftovers(), err)
	}
	if _, err := a.Drain(t.Context(), &api.DrainRequest{Cancel: true}); err != nil {
		t.Error(err)
	}
}
