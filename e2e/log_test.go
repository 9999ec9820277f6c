package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each line of agent and invoker is JSON, and none is below the log level.
func TestBothProcessesLogAsTold(t *testing.T) {
	for _, level := range []string{"info", "error"} {
		a := upApart(t, "--listen", "127.0.0.1:0", "--log-format", "json", "--log-level", level)
		must(t, "down", "--run-dir", a.run)
		content, err := os.ReadFile(filepath.Join(a.run, "fastiov.log"))
		if err != nil {
			t.Fatal(err)
		}
		if level == "error" {
			if len(content) > 0 {
				t.Errorf("below the level: %s", content)
			}
			continue
		}
		processes := map[any]bool{}
		for line := range strings.Lines(string(content)) {
			var said map[string]any
			if err := json.Unmarshal([]byte(line), &said); err != nil {
				t.Errorf("%v: %s", err, line)
			}
			processes[said["process"]] = true
		}
		if !processes["agent"] || !processes["invoker"] {
			t.Errorf("lines of %v:\n%s", processes, content)
		}
	}
}
