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

// All that `make test` runs fits its budget, whatever the caches hold, except tiers with a record.
func TestTheTiersOfMakeTestFitItsBudget(t *testing.T) {
	script := read(t, ".ci/tiers")
	budget := regexp.MustCompile(`FASTIOV_CI_BUDGET:-(\d+)`).FindStringSubmatch(script)[1]
	most, _ := strconv.Atoi(budget)
	for _, file := range []string{"Makefile", ".ci/run", "README.md"} {
		if !strings.Contains(read(t, file), budget) {
			t.Errorf("%s does not name the budget of %d minutes that .ci/tiers has", file, most)
		}
	}
	only := regexp.MustCompile(`(?m)^ONLY +\?= (.*)$`).FindStringSubmatch(read(t, "Makefile"))
	if only == nil {
		t.Fatal("make test runs no tiers")
	}
	sum := 0
	for name := range strings.FieldsSeq(only[1]) {
		tier, recorded := strings.CutSuffix(name, "?")
		worst := regexp.MustCompile(`(?m)^MINUTES=(\d+)$`).FindStringSubmatch(read(t,
			".ci/tier/"+tier))
		if worst == nil {
			t.Fatalf(".ci/tier/%s has no worst case", tier)
		}
		minutes, _ := strconv.Atoi(worst[1])
		if !recorded { // a tier with a record is left out, with a message, if it does not fit
			sum += minutes
		}
	}
	if sum >= most { // the work between the tiers takes seconds
		t.Errorf("the tiers of make test may take %d minutes together, the budget is %d", sum, most)
	}
}

// tiers runs the script with the test's own tiers, each of which takes so many minutes of the
// budget.
func tiers(t *testing.T, budget int, own map[string]string, names string) (out string, err error) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range own {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	body, rest, found := strings.Cut(read(t, ".ci/tiers"), "\nTIERS=.ci/tier\n")
	if !found {
		t.Fatal(".ci/tiers has no folder of tiers")
	}
	script := body + "\nTIERS=" + dir + "\n" + rest
	cmd := exec.Command("bash", "-c", script, root+"/.ci/tiers")
	cmd.Args = append(cmd.Args, strings.Fields(names)...)
	cmd.Env = append(cmd.Environ(), "FASTIOV_CI_BUDGET="+strconv.Itoa(budget))
	raw, err := cmd.CombinedOutput()
	return string(raw), err
}

func TestATierMayUseWhatThoseBeforeItLeftOver(t *testing.T) {
	own := map[string]string{}
	for name, minutes := range map[string]string{"first": "2", "last": "4", "full/chaos": "9"} {
		own[name] = "MINUTES=" + minutes + "\ntier() { step it true; }\n"
	}
	for _, c := range []struct {
		budget int
		want   []string
	}{
		{10, []string{"first (at most 6:00)", "last (at most 10:00)", "full/chaos (at most 9:00)",
			"3 passed, 0 failed"}},
		{7, []string{"first (at most 3:00)", "last (at most 7:00)", "3 passed, 0 failed"}},
		{3, []string{"first (at most 2:00)", "2 passed, 0 failed",
			"not run: last: it may take 4:00, 3:00 of the budget is left"}},
	} {
		out, err := tiers(t, c.budget, own, "first last full/chaos")
		almost := regexp.MustCompile(`\b(\d):[3-5]\d\b`) // seconds have passed
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
		`step "no such test" go test -run '^$' ./rules/figures`,
		`tagged nobody "no such tag"`,
	} {
		own := map[string]string{"own": "MINUTES=4\ntier() { " + tier + "; }\n"}
		out, err := tiers(t, 5, own, "own")
		if err == nil || !strings.Contains(out, "0 passed, 1 failed") {
			t.Errorf("%s ended with %v:\n%s", tier, err, out)
		}
	}
}

// A package may fail though its tests pass, and those after it, too.
func TestAPackageThatFailsSaysWhy(t *testing.T) {
	own := map[string]string{"own": "MINUTES=4\ntier() { step it bash -c '" +
		`printf "%s\n" "--- PASS: TestA" PASS "goleak: Errors" "FAIL	a	1s"` +
		` "    b_test.go:1: wrong" "--- FAIL: TestB" "FAIL	b	1s"` +
		` "--- PASS: TestC" PASS "ok  	c	1s" FAIL; exit 1'; }` + "\n"}
	want := "  | PASS\n  | goleak: Errors\n  | FAIL\ta\t1s\n" +
		"  |     b_test.go:1: wrong\n  | --- FAIL: TestB\ntime"
	if out, err := tiers(t, 5, own, "own"); err == nil || !strings.Contains(out, want) {
		t.Errorf("%v: no %q in\n%s", err, want, out)
	}
}

// A fuzzer that finds an input fails its step. A fuzzer whose time ends while it minimizes does
// not.
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
		own := map[string]string{"own": "MINUTES=4\n" +
			`tier() { step it bash -c "$FUZZ" bash . ` + fuzzer + " FuzzX 3s /nonexistent; }\n"}
		if out, _ := tiers(t, 5, own, "own"); !strings.Contains(out, want) {
			t.Errorf("%s: no %q in\n%s", said, want, out)
		}
	}
}

// A tier with a question mark is left out, with a message, while its record holds; without a record
// it runs. Its record counts tests, not steps.
func TestATierIsLeftOutByItsRecord(t *testing.T) {
	for _, c := range []struct{ holds, name, want string }{
		{"yes", "slow?", "not run: slow, by its record: " +
			"-tags=T ./rules/record -holds .ci/records/slow.json"},
		{"", "slow?", "-tags=T ./rules/record .ci/records/slow.json 2 1"},
		{"", "slow?", "4 passed, 0 failed"}, // the step, its two tests, the record
		{"yes", "slow", "4 passed, 0 failed"},
	} {
		own := map[string]string{"slow": "MINUTES=4\nRECORDED=T\nHOLDS=" + c.holds + `
			timeout() { shift 3; "$@"; }
			go() { echo "${GOFLAGS##* } $2 $3 $4 ${5:-}"; [ -n "$HOLDS" ] || [ "$3" != -holds ]; }
			tier() {
				step build true
				step "two tests" printf '%s\n' '--- PASS: TestA' '--- PASS: TestB'
			}` + "\n"}
		out, _ := tiers(t, 5, own, c.name)
		if !strings.Contains(out, c.want) {
			t.Errorf("%+v:\n%s", c, out)
		}
	}
}

// Tiers choose tests by package and build tag, so a renamed test still runs.
func TestTiersNameNoTests(t *testing.T) {
	names := regexp.MustCompile(`-run[ =]'?\^?\w`)
	sources(t, func(path string) {
		if path != "Makefile" && !strings.HasPrefix(path, ".ci/") {
			return
		}
		if found := names.FindString(read(t, path)); found != "" {
			t.Errorf("%s names a test: %s; give its file a build tag", path, found)
		}
	})
}
