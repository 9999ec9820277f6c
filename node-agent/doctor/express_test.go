package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The doctor lists bridges with an express path, with what conntrack's settings were, and says
// where no process follows.
func TestTheExpressPath(t *testing.T) {
	records := t.TempDir()
	if f := express(records); f.Verdict != OK || !strings.Contains(f.Found, "no bridge has one") {
		t.Errorf("without any: %+v", f)
	}
	text := `{"Bridge": "br0", "Index": 7, "Settings":
		{"/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal": "0"}}`
	if err := os.WriteFile(filepath.Join(records, "br0.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := express(records)
	if f.Verdict != Note || !strings.Contains(f.Remedy, "br0") ||
		!strings.Contains(f.Found, "br0 (nf_conntrack_tcp_be_liberal was 0)") {
		t.Errorf("where nobody follows: %+v", f)
	}
	if err := os.WriteFile(filepath.Join(records, "br0.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f := express(records); f.Verdict != No {
		t.Errorf("a damaged record: %+v", f)
	}
}
