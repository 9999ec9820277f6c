package rules

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// All that `make test` runs fits its budget, whatever the caches hold: no tier is left out.
func TestTheTiersOfMakeTestFitItsBudget(t *testing.T) {
	script := read(t, ".ci/tiers")
	budget := regexp.MustCompile(`FASTIOV_BUDGET:-(\d+)`).FindStringSubmatch(script)[1]
	most, _ := strconv.Atoi(budget)
	for _, file := range []string{"Makefile", ".ci/run", "README.md"} {
		if !strings.Contains(read(t, file), budget) {
			t.Errorf("%s does not name the budget of %d minutes that .ci/tiers has", file, most)
		}
	}
	runs := regexp.MustCompile(`(?m)^test:.*\n(?:\t.*\n)*?\t@\.ci/tiers (.*)\n`)
	recipe := runs.FindStringSubmatch(read(t, "Makefile"))
	if recipe == nil {
		t.Fatal("make test runs no tiers")
	}
	sum := 0
	for name := range strings.FieldsSeq(recipe[1]) {
		tier := strings.Trim(name, "'?")
		worst := regexp.MustCompile(`\[` + tier + `\]=(\d+)`).FindStringSubmatch(script)
		if worst == nil {
			t.Fatalf(".ci/tiers has no worst case of %s", tier)
		}
		minutes, _ := strconv.Atoi(worst[1])
		sum += minutes
		inHead := regexp.MustCompile(`(?m)^#   ` + tier + ` .*(\n#     +.*)*\b` + worst[1] + `\b`)
		if !inHead.MatchString(script) {
			t.Errorf("the head of .ci/tiers does not give %s its %d minutes", tier, minutes)
		}
	}
	if sum >= most { // what the tiers do between them takes seconds
		t.Errorf("the tiers of make test may take %d minutes together, the budget is %d", sum, most)
	}
}

// tiers runs the script with tiers of the test's own, each worth so many minutes of the budget.
func tiers(t *testing.T, budget int, own, names string) (out string, err error) {
	t.Helper()
	body, _, found := strings.Cut(read(t, ".ci/tiers"), "\nmain \"$@\"\n")
	if !found {
		t.Fatal(`.ci/tiers does not end with main "$@"`)
	}
	cmd := exec.Command("bash", "-c", body+"\n"+own+"\nmain "+names, root+"/.ci/tiers")
	cmd.Env = append(cmd.Environ(), "FASTIOV_BUDGET="+strconv.Itoa(budget))
	raw, err := cmd.CombinedOutput()
	return string(raw), err
}

func TestATierMayUseWhatThoseBeforeItLeftOver(t *testing.T) {
	const own = `WORST=([first]=2 [last]=4 [chaos]=9)
		first() { step it true; }; last() { first; }; chaos() { first; }`
	for _, c := range []struct {
		budget int
		want   []string
	}{
		{10, []string{"first (at most 6:00)", "last (at most 10:00)", "chaos (at most 9:00)",
			"3 passed, 0 failed"}},
		{7, []string{"first (at most 3:00)", "last (at most 7:00)", "3 passed, 0 failed"}},
		{3, []string{"first (at most 2:00)", "2 passed, 0 failed",
			"not run: last: it may take 4:00, 3:00 of the budget is left"}},
	} {
		out, err := tiers(t, c.budget, own, "first last chaos")
		almost := regexp.MustCompile(`\b(\d):5\d\b`) // seconds have passed
		out = almost.ReplaceAllStringFunc(out, func(s string) string {
			minutes, _ := strconv.Atoi(s[:1])
			return strconv.Itoa(minutes+1) + ":00"
		})
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("budget %d: no %q (%v) in\n%s", c.budget, want, err, out)
			}
		}
	}
}

func TestATierThatFindsNoTestsFails(t *testing.T) {
	for _, tier := range []string{
		`own() { step "no such test" go test -run '^$' ./rules/figures; }`,
		`own() { local packages=(); some "${packages[@]}"; }`,
	} {
		out, err := tiers(t, 5, "WORST[own]=4; "+tier, "own")
		if err == nil || !strings.Contains(out, "0 passed, 1 failed") {
			t.Errorf("%s ended with %v:\n%s", tier, err, out)
		}
	}
}

// A fuzzer that finds an input fails its step; one whose time ends while it minimizes does not.
func TestWhatAFuzzerFindsFailsItsStep(t *testing.T) {
	for said, want := range map[string]string{
		"echo '--- PASS: FuzzX'":                                "1 passed, 0 failed",
		"echo '--- FAIL: FuzzX'; exit 1":                        "0 passed, 1 failed",
		"echo context deadline exceeded; exit 1":                "1 passed, 0 failed",
		"echo Failing input, context deadline exceeded; exit 1": "0 passed, 1 failed",
		"true": "0 passed, 1 failed", // it ran no target
	} {
		fuzzer := filepath.Join(t.TempDir(), "fuzzer")
		if err := os.WriteFile(fuzzer, []byte("#!/bin/sh\n"+said+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		own := `WORST[own]=4
			own() { step it bash -c "$FUZZ" bash . ` + fuzzer + ` FuzzX 3s /nonexistent; }`
		if out, _ := tiers(t, 5, own, "own"); !strings.Contains(out, want) {
			t.Errorf("%s: no %q in\n%s", said, want, out)
		}
	}
}

// A tier with a question mark is left out, aloud, while its record holds; without one it runs.
func TestATierIsLeftOutByItsRecord(t *testing.T) {
	const own = `WORST=([slow]=4); RECORD=([slow]=slow)
		recorded_slow() { echo ./slow; }
		slow() { step it true; }
		go() { echo "$2 $3 $4 $5"; [ -n "$HOLDS" ]; }`
	for _, c := range []struct{ holds, name, want string }{
		{"yes", "'slow?'", "LEFT OUT: slow, by its record: ./rules/record -holds .ci/records/slow.json"},
		{"", "'slow?'", "1 passed, 0 failed"},
		{"yes", "slow", "1 passed, 0 failed"},
	} {
		out, _ := tiers(t, 5, "HOLDS="+c.holds+"; "+own, c.name)
		if !strings.Contains(out, c.want) {
			t.Errorf("%+v:\n%s", c, out)
		}
	}
}
