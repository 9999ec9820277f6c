package startup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestRefusalsSayWhy(t *testing.T) {
	for _, c := range []struct {
		name   string
		vfs    int
		memory int
		want   string
	}{
		{"larger than the node", 1, 2000, "it asks for 2000 MiB and the node has 1024"},
		{"no memory", 5, 1000, "no memory: 1000 MiB asked, 896 of 1024 free, 0 ahead"},
		{"no VF", 1, 64, "no idle VF, 0 ahead"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := NewAdmission(1024, newPool(c.vfs))
			if _, err := a.Acquire(t.Context(), "first", 128, 0); err != nil {
				t.Fatal(err)
			}
			_, err := a.Acquire(t.Context(), "second", c.memory, 0)
			var refused *Refused
			if !errors.As(err, &refused) || !strings.Contains(refused.Reason, c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestWaitersAreServedInOrder(t *testing.T) {
	a := NewAdmission(1024, newPool(1))
	g, err := a.Acquire(t.Context(), "holder", 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	order := make(chan string, 3)
	var wg sync.WaitGroup
	for i, id := range []string{"a", "b", "c"} {
		wg.Go(func() {
			g, err := a.Acquire(t.Context(), id, 1, time.Minute)
			if err != nil {
				t.Error(err)
				return
			}
			order <- id
			a.Release(g)
		})
		for waiting := 0; waiting <= i; _, _, waiting = a.Usage() {
			time.Sleep(time.Millisecond)
		}
	}
	a.Release(g)
	wg.Wait()
	close(order)
	var got string
	for id := range order {
		got += id
	}
	if got != "abc" {
		t.Errorf("served in order %s", got)
	}
}

func TestALargeWaiterThatLeavesMakesRoom(t *testing.T) {
	a := NewAdmission(1024, newPool(3))
	if _, err := a.Acquire(t.Context(), "holder", 600, 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	large, small := make(chan error), make(chan error)
	go func() { _, err := a.Acquire(ctx, "large", 1000, time.Minute); large <- err }()
	for waiting := 0; waiting < 1; _, _, waiting = a.Usage() {
		time.Sleep(time.Millisecond)
	}
	go func() { _, err := a.Acquire(t.Context(), "small", 100, time.Minute); small <- err }()
	for waiting := 0; waiting < 2; _, _, waiting = a.Usage() {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-large; !errors.Is(err, context.Canceled) {
		t.Errorf("large: %v", err)
	}
	if err := <-small; err != nil {
		t.Errorf("small: %v", err)
	}
}

// Whatever the order of asking, leaving and releasing, no more memory or VFs are given out than
// there are, and all of it is back at the end.
func TestAdmissionKeepsItsBooks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const total = 1000
		p := newPool(rapid.IntRange(1, 4).Draw(t, "vfs"))
		a := NewAdmission(total, p)
		var held []*Grant
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(t *rapid.T) {
				g, err := a.Acquire(context.Background(), fmt.Sprint(len(held)),
					rapid.IntRange(1, 600).Draw(t, "memory"), 0)
				if err == nil {
					held = append(held, g)
				}
			},
			"release": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip("nothing is held")
				}
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				a.Release(held[i])
				held = append(held[:i], held[i+1:]...)
			},
			"": func(t *rapid.T) {
				sum := 0
				for _, g := range held {
					sum += g.MemoryMiB
				}
				used, _, waiting := a.Usage()
				if used != sum || used > total || waiting != 0 || p.held() != len(held) {
					t.Fatalf("%d MiB used, %d held; %d VFs of %d grants; %d wait", used, sum,
						p.held(), len(held), waiting)
				}
			},
		})
	})
}
