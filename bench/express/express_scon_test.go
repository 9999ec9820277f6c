//go:build scon

package express

import (
	"os"
	"testing"
	"time"

	"github.com/fastiov/fastiov/bench/kept"
)

// Every load is played by every arm that this kernel has, and express packets go express.
func TestEveryLoadIsPlayed(t *testing.T) {
	if os.Getenv(inside) == "" {
		t.Skip("needs root")
	}
	rounds := &kept.Rounds[Round]{}
	b := Bench{Rounds: 1, Budget: time.Millisecond, Kept: rounds, Out: t.Output(),
		Command: []string{"/proc/self/exe", "host"}}
	r, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range loads() {
		for _, arm := range l.arms {
			c := r.cell(l.Name, arm)
			if b.missing[arm] || b.missing[arm+l.Name] {
				continue
			}
			if c == nil || c.CPUNs.Median <= 0 || c.PerSecond <= 0 {
				t.Errorf("%s by %s: %+v", l.Name, arm, c)
			}
		}
	}
	for _, arm := range []string{Native, Bridge, Express} {
		if b.missing[arm] {
			t.Errorf("%s is left out", arm)
		}
	}
	if err := r.Draw(t.TempDir(), "fastiov bench scon"); err != nil {
		t.Fatal(err)
	}
}
