package agent

import (
	"bytes"
	_ "embed"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/node-agent/vf"
)

// What the former version wrote of a sandbox x that holds a VF.
//
//go:embed testdata/record-former.json
var formerRecord string

// A sandbox of the former version is ended without being asked anything, and its VF returned.
func TestWhatAFormerVersionLeftIsEnded(t *testing.T) {
	a, d, v := newAgent(t)
	var log bytes.Buffer
	a.Log = slog.New(slog.NewTextHandler(&log, nil))
	owner := vf.Owner{Sandbox: "x", PID: 188, StartTicks: 5808}
	v.found = []vf.Lease{{BDF: "0000:01:10.0", Owner: owner}}
	d.adopts["x"] = true // it lives, and would be adopted if it were asked
	dir := a.Starter.Dir("x")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	record := []byte(strings.Replace(formerRecord, "DIR", dir, 1))
	if err := os.WriteFile(dir+"/record.json", record, 0o600); err != nil {
		t.Fatal(err)
	}
	adopted, ended := a.Adopt(t.Context())
	if adopted != 0 || ended != 1 || !slices.Contains(d.ended, "x") || len(v.returned) != 1 {
		t.Errorf("%d adopted, %d ended: %v; returned %v", adopted, ended, d.ended, v.returned)
	}
	if !strings.Contains(log.String(), "of a former version") {
		t.Errorf("the log says %s", log.String())
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("its directory is still there")
	}
}
