package kept

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestALineThatIsNoRoundIsNamed(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "rounds")
	if err := os.WriteFile(path, []byte("{}\nno round\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open[struct{}](dir, "rounds"); err == nil ||
		!strings.Contains(err.Error(), path+":2 is not") {
		t.Errorf("%v", err)
	}
}

func TestAFolderIsMade(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for n := range 2 {
		k, err := Open[int](dir, "rounds")
		if err != nil {
			t.Fatal(err)
		}
		if len(k.All) != n || k.Add(n) != nil || k.File() != filepath.Join(dir, "rounds") {
			t.Errorf("%v in %s", k.All, k.File())
		}
		k.Close()
	}
}
