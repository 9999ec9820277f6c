package controlplane

import "testing"

// A run whose watchers did not get all that they should have fails.
func TestWatchersThatLostEventsFailTheRun(t *testing.T) {
	well := func() *Knative {
		return &Knative{Watches: &Watches{Slow: Slow{Events: 1, Gone: true, Goes: true}}}
	}
	if err := well().Err(); err != nil {
		t.Errorf("a run that lost nothing: %v", err)
	}
	for what, spoil := range map[string]func(k *Knative){
		"a failed request":                    func(k *Knative) { k.Failed = 1 },
		"a lost change":                       func(k *Knative) { k.Watches.Lost = 1 },
		"events out of order":                 func(k *Knative) { k.Watches.Reordered = 1 },
		"a slow watcher without events":       func(k *Knative) { k.Watches.Slow.Events = 0 },
		"a slow watcher that lost one":        func(k *Knative) { k.Watches.Slow.Lost = 1 },
		"a slow watcher that is not told 410": func(k *Knative) { k.Watches.Slow.Gone = false },
		"a stale list":                        func(k *Knative) { k.Watches.Slow.Stale = 1 },
		"a slow watcher that stays behind":    func(k *Knative) { k.Watches.Slow.Goes = false },
	} {
		k := well()
		if spoil(k); k.Err() == nil {
			t.Errorf("%s is no error", what)
		}
	}
}
