package load

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/fastiov/fastiov/node-agent/api/timeline"
)

// TestTracesAreRead runs the parser's own tests with Node.js; they do not need k6.
func TestTracesAreRead(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		if os.Getenv("FASTIOV_CI") != "" {
			t.Fatal(err)
		}
		t.Skip("needs node: install Debian's package nodejs")
	}
	dir := t.TempDir()
	for from, to := range map[string]string{
		"azure.js": "azure.mjs", "azure.test.mjs": "azure.test.mjs",
	} {
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(filepath.Join(dir, "traces"), os.DirFS("traces")); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), node,
		filepath.Join(dir, "azure.test.mjs")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The traces in the repository are what the script makes.
func TestTheSmallTracesAreMadeByTheirScript(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "python3",
		"traces/make.py", dir).CombinedOutput(); err != nil {
		t.Skipf("needs python3: %v %s", err, out)
	}
	made, err := filepath.Glob(filepath.Join(dir, "*.csv"))
	if err != nil || len(made) != 4 {
		t.Fatalf("%v, %v", made, err)
	}
	for _, file := range made {
		want, _ := os.ReadFile(file)
		got, _ := os.ReadFile(filepath.Join("traces", filepath.Base(file)))
		if !bytes.Equal(got, want) {
			t.Errorf("load/traces/%s is not what make.py makes; run it and commit that",
				filepath.Base(file))
		}
	}
}

// The summary lists all stages in their order.
func TestLoadKnowsTheStages(t *testing.T) {
	content, err := os.ReadFile("fastiov.js")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?s)const STAGES = \[(.*?)\]`).FindSubmatch(content)
	if list == nil {
		t.Fatal("load/fastiov.js lists no stages")
	}
	var want []string
	for _, stage := range timeline.Order {
		want = append(want, string(stage))
	}
	var got []string
	for _, quoted := range regexp.MustCompile(`'([^']+)'`).FindAllSubmatch(list[1], -1) {
		got = append(got, string(quoted[1]))
	}
	if !slices.Equal(got, want) {
		t.Errorf("load/fastiov.js lists %v; fastiov has %v", got, want)
	}
}
