package e2e

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fastiov/fastiov/invoker/openwhisk"
	"github.com/fastiov/fastiov/node-agent/sandbox/bare"
	"github.com/fastiov/fastiov/testbed"
)

// complains runs a command that must fail and returns the one line it ends with.
func complains(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := fastiov(t, args...)
	cmd.Env = append(cmd.Env, env...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	if err := cmd.Run(); err == nil {
		t.Errorf("fastiov %s did not fail", strings.Join(args, " "))
	}
	lines := strings.Split(strings.TrimSpace(complaint.String()), "\n")
	return lines[len(lines)-1]
}

// A full disk under the run directory or the image cache is an error at once.
func TestAFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64k"); err != nil {
		missing(t, "needs to mount a small disk: "+err.Error())
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	for _, dir := range []string{"run", "cache"} {
		if err := os.Mkdir(filepath.Join(disk, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	said := complains(t, []string{"FASTIOV_CACHE=" + filepath.Join(disk, "cache")}, "image",
		"export", t.TempDir())
	if !strings.Contains(said, "no space left on device; free some of the disk of "+disk) {
		t.Errorf("with a full cache: %q", said)
	}
	_ = os.WriteFile(filepath.Join(disk, "all"), make([]byte, 1<<20), 0o600)
	said = complains(t, nil, "up", "--foreground", "--sandbox", "sim", "--listen", "127.0.0.1:0",
		"--run-dir", filepath.Join(disk, "run"))
	if !strings.Contains(said, "no space left on device; free some there") {
		t.Errorf("with a full run directory: %q", said)
	}
}

// A store whose disk is full reports that to the readiness probe and to Prometheus, and accepts
// writes again once there is room.
func TestABrokenStoreSaysSo(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=8m"); err != nil {
		missing(t, "needs to mount a small disk: "+err.Error())
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	state, metrics, listen := filepath.Join(disk, "state"), listenLater(t), listenLater(t)
	background(t, "up", "--foreground", "--sandbox", "sim", "--listen", listen,
		"--metrics", metrics,
		"--run-dir", filepath.Join(t.TempDir(), "run"), "--state-dir", state)
	key, err := openwhisk.LoadKey(listen, keyFile(state))
	if err != nil {
		t.Fatal(err)
	}
	ready := func() (status int, said string) {
		resp, err := http.Get("http://" + metrics + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	if status, said := ready(); status != http.StatusOK {
		t.Fatalf("%d %s", status, said)
	}
	filler := filepath.Join(disk, "all")
	if err := os.WriteFile(filler, make([]byte, 8<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	code := strings.Repeat(" ", 1<<20)
	eventually(t, func() bool {
		req, err := http.NewRequest(http.MethodPut, "http://"+listen+
			"/api/v1/namespaces/_/actions/large?overwrite=true",
			strings.NewReader(`{"exec":{"kind":"nodejs:default","code":"`+code+
				`function main() {}"}}`))
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth(key.UUID, key.Secret)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		status, said := ready()
		return status == http.StatusServiceUnavailable && strings.Contains(said, "free some space")
	})
	if page := scrape(t, metrics); !strings.Contains(page, "\nfastiov_store_broken 1\n") {
		t.Error("Prometheus is not told that the store is broken")
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		status, _ := ready()
		return status == http.StatusOK
	})
	if page := scrape(t, metrics); !strings.Contains(page, "\nfastiov_store_broken 0\n") {
		t.Error("the store has room again, and Prometheus is not told")
	}
}

// The agent leaves such a VF alone, reports it, serves the others, and takes it once it is free.
func TestAVFThatSomebodyElseHolds(t *testing.T) {
	testbed.Inside(t, testbed.Needs{NICs: 1}, func(t *testing.T) {
		run := filepath.Join(t.TempDir(), "run")
		agent := []string{"agent", "--sandbox", "bare", "--pf", "igb", "--run-dir", run,
			"--state-dir", t.TempDir(), "--metrics", "",
			"--subnet", "10.0.2.0/24", "--first-address", "10.0.2.100", "--gateway", "10.0.2.2",
			"--dns", "10.0.2.3"}
		const bdf = "0000:01:10.0"
		first := fastiov(t, agent...)
		if err := first.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool { return idleVFs(t, run) == 7 })
		must(t, "down", "--run-dir", run) // the VFs stay bound to vfio-pci
		_ = first.Wait()

		group, err := os.Readlink("/sys/bus/pci/devices/" + bdf + "/iommu_group")
		if err != nil {
			t.Fatal(err)
		}
		held, err := bare.OpenVF("/dev/vfio/"+filepath.Base(group), bdf)
		if err != nil {
			t.Fatal(err)
		}
		second := fastiov(t, agent...)
		var log bytes.Buffer
		second.Stderr = &log
		if err := second.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool { return idleVFs(t, run) == 6 })
		held.Close()
		eventually(t, func() bool { return idleVFs(t, run) == 7 })
		must(t, "down", "--undo", "--run-dir", run)
		_ = second.Wait()
		said := false
		for line := range strings.Lines(log.String()) {
			said = said || strings.Contains(line, bdf) &&
				(strings.Contains(line, "in use") || strings.Contains(line, "busy"))
		}
		if !said {
			t.Errorf("no line says that %s is in use:\n%s", bdf, log.String())
		}
	})
}

func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	for late := time.Now().Add(time.Minute); !holds(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("not within a minute")
		}
	}
}

func idleVFs(t *testing.T, run string) int {
	out, err := fastiov(t, "status", "--run-dir", run).Output()
	if err != nil {
		return 0 // not up yet
	}
	return strings.Count(string(out), " idle ")
}
