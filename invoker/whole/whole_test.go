package whole

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// New leaves the file that is there, os.Rename replaces it, and neither leaves another beside it.
func TestAFileIsWholeOrNotThere(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys", "key")
	for _, c := range []struct {
		content, want string
		put           func(from, to string) error
		err           error
	}{
		{"first", "first", New, nil},
		{"second", "first", New, fs.ErrExist},
		{"third", "third", os.Rename, nil},
	} {
		if err := Write(file, []byte(c.content), 0o600, c.put); !errors.Is(err, c.err) {
			t.Errorf("%s: %v", c.content, err)
		}
		got, err := os.ReadFile(file)
		all, _ := os.ReadDir(filepath.Dir(file))
		if string(got) != c.want || len(all) != 1 {
			t.Errorf("after %s there are %v, with %q: %v", c.content, all, got, err)
		}
	}
}
