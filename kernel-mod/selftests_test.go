package kernelmod_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fastiov/fastiov/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// FASTIOV_TORTURE_SECONDS and FASTIOV_TORTURE_SEED make the torture long, and repeat one.
const (
	torturesFor  = "FASTIOV_TORTURE_SECONDS"
	torturesFrom = "FASTIOV_TORTURE_SEED"
)

// TestSelftests runs the programs of the directory selftests on the patched kernel; each of their results is a subtest here. QEMU's edu
// is the device: it does the DMA it is told to.
func TestSelftests(t *testing.T) {
	needs := testbed.Needs{MemoryMiB: 2560, Edu: true, Kernel: testbed.PatchedKernel, Env: []string{torturesFor, torturesFrom}}
	testbed.Inside(t, needs, func(t *testing.T) {
		edu := bindEdu(t)
		for _, program := range []string{"uapi", "contents", "touchmap", "hazard", "pressure", "torture"} {
			t.Run(program, func(t *testing.T) { runSelftest(t, program, edu) })
		}
		for _, line := range splats(t) {
			t.Error("the kernel complains: ", line)
		}
	})
}

func bindEdu(t *testing.T) (bdf string) {
	t.Helper()
	devices, _ := filepath.Glob("/sys/bus/pci/devices/*")
	for _, device := range devices {
		if id, err := os.ReadFile(device + "/device"); err != nil || strings.TrimSpace(string(id)) != "0x11e8" {
			continue
		}
		bdf = filepath.Base(device)
		if err := os.WriteFile(device+"/driver_override", []byte("vfio-pci"), 0); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("/sys/bus/pci/drivers_probe", []byte(bdf), 0); err != nil {
			t.Fatal(err)
		}
		return bdf
	}
	t.Fatal("the testbed has no edu device")
	return ""
}

// runSelftest runs a program and reads its results, which are in the format of TAP.
func runSelftest(t *testing.T, program, device string) {
	cmd := exec.CommandContext(t.Context(), filepath.Join(testbed.SelftestsDir, program))
	cmd.Env = append(os.Environ(), "FASTIOV_DEVICE="+device)
	for variable, from := range map[string]string{"SECONDS": torturesFor, "SEED": torturesFrom} {
		if value := os.Getenv(from); value != "" {
			cmd.Env = append(cmd.Env, variable+"="+value)
		}
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	results := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := lines.Text()
		ok := strings.HasPrefix(line, "ok ")
		if !ok && !strings.HasPrefix(line, "not ok ") {
			t.Log(line)
			continue
		}
		results++
		_, what, _ := strings.Cut(strings.TrimPrefix(line, "not "), " ")
		_, what, _ = strings.Cut(what, " ")
		what, skipped := strings.CutPrefix(what, "# SKIP ")
		t.Run(what, func(t *testing.T) {
			if skipped {
				t.Skip("the program says so")
			}
			if !ok {
				t.Fail()
			}
		})
	}
	if err := cmd.Wait(); err != nil || results == 0 {
		t.Error(errors.Join(err, errors.New("the program did not run to its end without a failure")))
	}
}

// splats are the lines of the kernel's log that begin a report of something that is wrong in it.
func splats(t *testing.T) (found []string) {
	t.Helper()
	log, err := exec.Command("dmesg").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		for _, sign := range []string{"BUG:", "WARNING:", "Oops", "general protection", "possible circular locking", "KASAN", "refcount_t:", "blocked for more than", "Bad page"} {
			if strings.Contains(line, sign) {
				found = append(found, strings.TrimSpace(line))
			}
		}
	}
	return found
}
