package e2e

import (
	"bytes"
	"encoding/json"
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/bench/controlplane"
)

// The head is compared with the commit before it.
func TestBenchAB(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a commit and starts servers")
	}
	if _, err := exec.Command("git", "rev-parse", "HEAD").Output(); err != nil {
		t.Skipf("needs a clone: %v", err)
	}
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	// A sandbox may still be on its way back to the pool when the next call comes. On a busy
	// machine a run may have many such calls.
	expected, unexpected := 0, 0
	for expected == 0 && unexpected < 3 {
		var r controlplane.ABResult
		out := must(t, "bench", "ab", "HEAD", "--slice", "250ms", "--within", "2s", "--json")
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		if coldAsExpected(t, &r) {
			expected++
		} else {
			unexpected++
		}
	}
	if unexpected == 3 {
		t.Error("three runs had other cold starts than expected")
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	trees, _ := exec.Command("git", "worktree", "list").Output()
	if strings.Contains(string(trees), tmp) {
		t.Errorf("a worktree is left:\n%s", trees)
	}
}

// coldAsExpected checks a comparison, and reports whether its warm calls had next to no cold starts
// and those of its burst one each.
func coldAsExpected(t *testing.T, r *controlplane.ABResult) bool {
	t.Helper()
	expected := true
	for load, c := range map[string]*controlplane.Compared{"warm": r.ControlPlane,
		"burst": r.Burst} {
		if c.Pairs == 0 || c.Failed > 0 || c.PerSecond.Ratio <= 0 || c.PerCPUSecond.Ratio <= 0 {
			t.Errorf("%s: %+v", load, c)
		}
		wantCold := map[string]float64{"burst": 1}[load]
		const few = 0.05
		for side, counts := range map[string]controlplane.Counts{"base": c.Base, "head": c.Head} {
			if math.Abs(counts.ColdStarts-wantCold) > few {
				expected = false
				t.Logf("%s, %s: %v cold starts of a call, not %v", load, side, counts.ColdStarts,
					wantCold)
			}
			if counts.ChildFaults > 0 || counts.Allocations <= 0 || counts.Idle == 0 ||
				counts.After == 0 {
				t.Errorf("%s, %s: %+v", load, side, counts)
			}
		}
	}
	return expected
}

func TestBenchABOfNoCommit(t *testing.T) {
	var complaint bytes.Buffer
	cmd := fastiov(t, "bench", "ab", "no-such-commit")
	cmd.Stderr = &complaint
	err := cmd.Run()
	said := complaint.String()
	if err == nil || strings.Count(said, "\n") != 1 ||
		!strings.Contains(said, "no commit no-such") {
		t.Errorf("%v, %q", err, said)
	}
}
