package rules

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The generated files name the protoc that made them. Only the same version makes the same files.
func TestGeneratedCodeIsUpToDate(t *testing.T) {
	const grpc = "node-agent/api/node_grpc.pb.go"
	made := regexp.MustCompile(`protoc +v(\S+)`).FindStringSubmatch(read(t, grpc))
	if made == nil {
		t.Fatalf("%s does not name the protoc that made it", grpc)
	}
	here, err := exec.Command("protoc", "--version").Output()
	if err != nil || !strings.Contains(string(here), made[1]) {
		miss := t.Skipf
		if os.Getenv("FASTIOV_CI") != "" {
			miss = t.Fatalf
		}
		miss("protoc %s is needed, here is %q (%v)", made[1], strings.TrimSpace(string(here)), err)
	}

	out := t.TempDir()
	generate := exec.Command("make", "-s", "generate", "OUT="+out)
	generate.Dir = root
	if log, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("make generate: %v\n%s", err, log)
	}
	for _, path := range []string{
		"node-agent/api/node.pb.go", grpc,
		"node-agent/api/devices.pb.go", "node-agent/api/devices_grpc.pb.go",
	} {
		fresh, err := os.ReadFile(filepath.Join(out, path))
		if err != nil {
			t.Fatal(err)
		}
		if string(fresh) != read(t, path) {
			t.Errorf("%s is not what its .proto file generates; run make generate and commit it",
				path)
		}
	}
}
