//go:build failpoint

package image

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/fastiov/fastiov/node-agent/failpoint"
)

// The variables by which this test starts itself as a process that pulls and then evicts.
const chaosDir, chaosRef = "FASTIOV_TEST_CHAOS_DIR", "FASTIOV_TEST_CHAOS_REF"

// TestAPullThatIsKilledIsResumed kills a process at each failpoint, once at each of its hits, until
// the process comes to its end. After each kill the next pull brings the right image, what was
// whole is not fetched again, and nothing else is left.
func TestAPullThatIsKilledIsResumed(t *testing.T) {
	if dir := os.Getenv(chaosDir); dir != "" {
		pullAndEvict(t, dir, os.Getenv(chaosRef))
		return
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	ref := pushLayers(t, host+"/team/a:1", func(*v1.ConfigFile) {},
		layer(t, file("one", strings.Repeat("1", 200<<10))), layer(t, file("two", "2")),
		layer(t, file("three", "3")))
	c := openFor(t, t.TempDir(), ref)
	root, err := pullFor(t, c, ref, "a")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(root.Root)
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range failpoint.Images {
		kills := 0
		for ; ; kills++ {
			dir := t.TempDir()
			cmd := exec.CommandContext(t.Context(), os.Args[0],
				"-test.run=^TestAPullThatIsKilledIsResumed$")
			cmd.Env = append(os.Environ(), chaosDir+"="+dir, chaosRef+"="+ref,
				fmt.Sprintf("%s=%s:%d", failpoint.Env, point, kills+1))
			out, err := cmd.CombinedOutput()
			if err == nil {
				break
			}
			var ended *exec.ExitError
			if !errors.As(err, &ended) ||
				ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("%s: %v: %s", point, err, out)
			}
			resumed(t, fmt.Sprintf("%s:%d", point, kills+1), dir, ref, want)
		}
		t.Logf("%s: %d kills", point, kills)
		if kills == 0 {
			t.Errorf("%s is never hit", point)
		}
	}
}

func pullAndEvict(t *testing.T, dir, ref string) {
	c := openFor(t, dir, ref)
	if _, err := pullFor(t, c, ref, "a"); err != nil {
		t.Fatal(err)
	}
	c.settling.all.Wait()
	c.evict(0)
}

func resumed(t *testing.T, at, dir, ref string, want []byte) {
	t.Helper()
	c := openFor(t, dir, ref)
	defer c.Close()
	if left := children(filepath.Join(dir, "tmp")); len(left) != 0 {
		t.Errorf("%s: left %v", at, left)
	}
	whole := map[string]os.FileInfo{}
	for _, key := range children(filepath.Join(dir, "entries")) {
		whole[key], _ = os.Stat(filepath.Join(c.entry(key), sealName))
	}
	r, err := pullFor(t, c, ref, "a")
	if err != nil {
		t.Errorf("%s: %v", at, err)
		return
	}
	if got, err := os.ReadFile(r.Root); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: another image, %v", at, err)
	}
	for key, before := range whole {
		if now, err := os.Stat(filepath.Join(c.entry(key), sealName)); err != nil ||
			!os.SameFile(before, now) {
			t.Errorf("%s: %s was whole and was made anew", at, key)
		}
	}
	c.settling.all.Wait()
	c.Prune()
	if left := append(children(filepath.Join(dir, "entries")),
		children(filepath.Join(dir, namesKey))...); len(left) != 0 {
		t.Errorf("%s: left %v", at, left)
	}
}
