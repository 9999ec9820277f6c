package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fastiov/fastiov/command"
	"github.com/fastiov/fastiov/command/settings"
	"github.com/fastiov/fastiov/testbed"
)

// asCommand makes the test binary the command itself, so that tests run what users run.
const asCommand = "FASTIOV_TEST_AS_COMMAND"

// asService makes the test binary the program of a Knative service.
const asService = "FASTIOV_TEST_AS_SERVICE"

func serveAsService() {
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, "there is no", os.Args[1])
		os.Exit(3)
	}
	panic(http.ListenAndServe(":"+os.Getenv("PORT"), http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			host, _ := os.Hostname()
			fmt.Fprintln(w, r.Host, r.URL.Path, os.Getenv("K_SERVICE"), os.Getenv("K_REVISION"),
				os.Getenv("TARGET"), host, os.Getpid())
		})))
}

func TestMain(m *testing.M) {
	// the process of a bare sandbox has no environment
	if os.Getenv(asCommand) != "" || len(os.Args) > 1 && os.Args[1] == bareVMM {
		command.Main()
		return
	}
	if os.Getenv(asService) != "" {
		serveAsService()
		return
	}
	if os.Getenv(watched) == "" {
		os.Exit(watch())
	}
	testbed.Main(m)
}

// fastiov returns the command with args, not started yet. It ends with the test.
func fastiov(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), asCommand+"="+t.Name(), settings.FileVariable+"="+
		settings.NoFile)
	return cmd
}

// must runs the command and returns its output.
func must(t *testing.T, args ...string) string {
	t.Helper()
	var out, complaint bytes.Buffer
	cmd := fastiov(t, args...)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		t.Fatalf("fastiov %s: %v\n%s%s", strings.Join(args, " "), err, out.Bytes(),
			complaint.Bytes())
	}
	return out.String()
}

// downAfter has `down` end what is up in a run directory when the test ends, also if `up` fails.
func downAfter(t *testing.T, run string) {
	t.Helper()
	t.Cleanup(func() {
		if out, err := fastiov(t, "down", "--run-dir", run).CombinedOutput(); err != nil {
			t.Errorf("fastiov down: %v\n%s", err, out)
		}
	})
}

// Bad input and bad hosts each end in one line that says what is wrong and why, and leave nothing
// behind.
func TestWhatIsWrongIsSaidOnOneLine(t *testing.T) {
	taken := listen(t)
	for _, c := range []struct {
		name string
		args []string
		as   *syscall.Credential
		want string
	}{
		{"not root", []string{"agent"}, &syscall.Credential{Uid: 65534, Gid: 65534}, "a node needs root"},
		{"no such driver", []string{"agent", "--sandbox", "lxc"}, nil, `no sandbox driver "lxc"`},
		{"API port taken", []string{"up", "--foreground", "--sandbox", "sim", "--listen", taken}, nil, "choose another address with --listen"},
		{"metrics port taken", []string{"agent", "--sandbox", "sim", "--metrics", taken}, nil, "choose another address with --metrics"},
		{"node API without certificates", []string{"agent", "--sandbox", "sim", "--metrics", "", "--node-listen", "127.0.0.1:0"}, nil, "--node-cert"},
		{"a far node without certificates", []string{"invoker", "--listen", "127.0.0.1:0", "--node", "127.0.0.1:1"}, nil, "--node-cert"},
		{"no such policy", []string{"invoker", "--listen", "127.0.0.1:0", "--keep-alive-policy", "guess"}, nil, "there are fixed and histogram"},
		{"no images", []string{"agent", "--images", "/nonexistent"}, nil, "/nonexistent is no set of images"},
		{"a damaged kernel", []string{"agent", "--images", damagedImages(t)}, nil, "guest/kernel is damaged"},
		{"no such limits", []string{"agent", "--sandbox", "bare", "--limits", "some"}, nil,
			"best-effort"},
		{"no network given", []string{"agent", "--sandbox", "bare", "--limits", "best-effort"}, nil, "--subnet"},
		{"no such PF", []string{"agent", "--sandbox", "bare", "--limits", "best-effort", "--pf", "nobody", "--subnet", "10.0.2.0/24",
			"--first-address", "10.0.2.100", "--gateway", "10.0.2.2", "--dns", "10.0.2.3"}, nil,
			"no SR-IOV device"},
		{"no huge pages", []string{"agent", "--sandbox", "bare", "--limits", "best-effort", "--huge-pages", "--subnet", "10.0.2.0/24",
			"--first-address", "10.0.2.100", "--gateway", "10.0.2.2", "--dns", "10.0.2.3"}, nil,
			"huge pages"},
		{"storage port taken", []string{"up", "--foreground", "--sandbox", "sim", "--listen", "127.0.0.1:0", "--metrics", "", "--storage", taken}, nil, "choose another address with --storage"},
		{"no such image", []string{"image", "build", "python:2"}, nil, `no recipe for "python:2"; there are`},
		{"no storage there", []string{"storage", "samples", "http://127.0.0.1:1"}, nil, "start a storage server"},
		{"no URL", []string{"storage", "samples", "127.0.0.1:1"}, nil, "no URL of a storage server"},
		{"nothing runs", []string{"status"}, nil, "no agent runs here"},
		{"nothing to report", []string{"report", "x"}, nil, "no agent runs here"},
		{"no rounds", []string{"burst", "--rounds", "0"}, nil, "want 1 or more"},
		{"a burst over what it cannot make", []string{"burst", "--sandbox", "qemu"}, nil, "start others by `fastiov up`"},
		{"arms of a bench", []string{"bench", "startup", "--arms", "none,all"}, nil, "spaces are between arms"},
		{"an arm of a bench alone", []string{"agent", "--fastiov", "pre10"}, nil, "a node cannot zero memory ahead"},
		{"an arm beside a bench", []string{"bench", "vf-open", "--arms", "none d=pagecache"}, nil, "so d does not matter here"},
		{"an arm that the bench chooses", []string{"bench", "startup", "--", "--fastiov=all"}, nil, "follows from --arms"},
		{"unknown flag", []string{"up", "--nonsense"}, nil, "unknown flag"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if os.Geteuid() != 0 {
				t.Skip("needs root, to get past the first check")
			}
			runDir := filepath.Join(t.TempDir(), "run")
			args := c.args
			if c.name != "unknown flag" && args[0] != "storage" && args[0] != "image" &&
				args[0] != "bench" {
				args = append(args, "--run-dir", runDir)
			}
			cmd := fastiov(t, args...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.as}
			if c.as != nil {
				worldRun(t, cmd)
			}
			var complaint bytes.Buffer
			cmd.Stderr = &complaint
			err := cmd.Run()
			lines := strings.Split(strings.TrimSpace(complaint.String()), "\n")
			last := lines[len(lines)-1]
			if err == nil || !strings.HasPrefix(last, "fastiov: ") ||
				!strings.Contains(last, c.want) {
				t.Errorf("exit %v, %q; want a line with %q", err, complaint.String(), c.want)
			}
			if left, _ := filepath.Glob(filepath.Join(runDir, "*")); len(left) > 0 &&
				!harmless(left) {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func damagedImages(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "guest"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kernel", "initrd"} {
		if err := os.WriteFile(filepath.Join(dir, "guest", name),
			[]byte("rubbish"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// harmless reports whether the files are only lock files and notes of an ended process, which
// affect nobody.
func harmless(files []string) bool {
	for _, f := range files {
		switch filepath.Base(f) {
		case "lock", "listen", "capacity":
		default:
			return false
		}
	}
	return true
}

// worldRun lets another user run this test's binary.
func worldRun(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	binary, err := os.ReadFile(cmd.Path)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "fastiov-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cmd.Path = filepath.Join(dir, "fastiov")
	cmd.Dir = dir
	if err := os.WriteFile(cmd.Path, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// fileOf returns a file with that content, which only this user can read.
func fileOf(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// missing skips a test because a tool is missing on this machine; in continuous integration it
// fails the test.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("FASTIOV_CI") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}
