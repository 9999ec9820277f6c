package e2e

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/functions/inputs"
)

// `up --storage` serves what `storage samples` stored there.
func TestTheSamplesCanBeFetched(t *testing.T) {
	if testing.Short() {
		t.Skip("makes the weights of a network")
	}
	dir := t.TempDir()
	run, at := filepath.Join(dir, "run"), listenLater(t)
	downAfter(t, run)
	must(t, "up", "--sandbox", "sim", "--run-dir", run, "--state-dir", dir,
		"--listen", "127.0.0.1:0", "--metrics", "", "--storage", at)
	said := must(t, "storage", "samples", "http://"+at)
	for _, key := range inputs.Keys {
		if !strings.Contains(said, key) {
			t.Errorf("samples said %q, nothing of %s", said, key)
		}
		resp, err := http.Get("http://" + at + "/" + key)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || len(content) < 1000 {
			t.Errorf("%s: %s, %d bytes, %v", key, resp.Status, len(content), err)
		}
	}
}
