//go:build patched

package kernelmod_test

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fastiov/fastiov/node-agent/arm"
	"github.com/fastiov/fastiov/node-agent/vf"
	"github.com/fastiov/fastiov/testbed"
	"github.com/fastiov/fastiov/testbed/wire"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// FASTIOV_TEST_TORTURE_SECONDS makes the torture long. FASTIOV_TEST_TORTURE_SEED repeats one.
const (
	torturesFor  = "FASTIOV_TEST_TORTURE_SECONDS"
	torturesFrom = "FASTIOV_TEST_TORTURE_SEED"
)

var patched = testbed.Needs{MemoryMiB: 2560, Edu: true, Kernel: testbed.PatchedKernel}

// bothWays runs body in a testbed, for devices in a VFIO container and for devices under iommufd.
func bothWays(t *testing.T, needs testbed.Needs, body func(t *testing.T, iommu string)) {
	for _, iommu := range []string{"type1", "iommufd"} {
		t.Run(iommu, func(t *testing.T) {
			testbed.Inside(t, needs, func(t *testing.T) { body(t, iommu) })
		})
	}
}

// TestSelftests runs the programs of the directory selftests on the patched kernel, with the device
// in a VFIO container and under iommufd. Each of their results is a subtest here. The device is
// QEMU's edu, whose DMA a program controls.
func TestSelftests(t *testing.T) {
	needs := patched
	needs.Env = []string{torturesFor, torturesFrom}
	if os.Getenv("FASTIOV_TEST_KERNEL") == testbed.KCSANKernel {
		needs.CPUs = 2 // on one, few races can happen
	}
	bothWays(t, needs, func(t *testing.T, iommu string) {
		said := strings.Count(kernelLog(t), dangerous)
		if tainted(t) && said == 0 {
			t.Error("the kernel is tainted before it was told to do what is not safe")
		}
		if err := arm.None.Apply(); err != nil ||
			strings.Count(kernelLog(t), dangerous) != said {
			t.Errorf("a kernel whose switches are safe was told to do what is not safe (%v)", err)
		}
		edu := bindEdu(t)
		programs := []string{"uapi", "contents", "touchmap", "table", "hazard", "held", "served",
			"pair", "sets", "limits", "pressure", "torture", "reload"}
		if _, err := os.Stat("/sys/kernel/debug/failslab"); err == nil {
			programs = append(programs, "faults") // on the debug kernel
		}
		noSplats(t)
		for _, program := range programs {
			t.Run(program, func(t *testing.T) {
				devices := edu
				if program == "sets" {
					devices = edu[2:] // that can only be reset together
				}
				runSelftest(t, program, devices[0], iommu, "FASTIOV_TEST_DEVICE2="+devices[1])
				taints(t, program)
			})
		}
	})
}

// dangerous ends the line that the kernel logs when a parameter that is not safe is set.
const dangerous = " - tainting kernel"

// taints fails the test if a program has set parameters that are not safe, and no taint says so.
func taints(t *testing.T, program string) {
	t.Helper()
	said := kernelLog(t)
	for _, parameter := range map[string][]string{
		"hazard": {"defer_to_any", "hold_master"}, "table": {"allow_table"},
	}[program] {
		if !tainted(t) || !strings.Contains(said, parameter+dangerous) {
			t.Errorf("the parameter %s was set, and the kernel is not tainted", parameter)
		}
	}
}

// tainted returns whether the kernel says that it was told to do what is not safe.
func tainted(t *testing.T) bool {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/kernel/tainted")
	if err != nil {
		t.Fatal(err)
	}
	flags, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	const user = 1 << 6 // TAINT_USER
	return flags&user != 0
}

// A guest's processors touch a BAR while one of them has the device held.
func TestProcessorsWaitForAHeldDevice(t *testing.T) {
	needs := patched
	needs.CPUs = 2
	bothWays(t, needs, func(t *testing.T, iommu string) {
		runSelftest(t, "crowd", bindEdu(t)[0], iommu)
	})
}

// A VF that was touched is reset, however it was touched.
func TestTouchedVFsAreReset(t *testing.T) {
	needs := patched
	needs.NVMeVFs = 2
	testbed.Inside(t, needs, func(t *testing.T) {
		p, lease := leaseVF(t, "nvme")
		runSelftest(t, "resets", lease.BDF, "type1")
		p.Return(lease)
		noSplats(t)
	})
}

// The wire's recording shows what a VF transmits of memory that nobody has touched: frames of
// selftests/wire, which name their arrangement. With touchmap there is no such memory: the IOMMU
// refuses, and after a while the pool ends the sandbox.
func TestTheWireOnThePatchedKernel(t *testing.T) {
	needs := patched
	needs.Outside = func(h *testbed.Host) {
		sent, stale := onTheWire(t, h.Wire(0))
		for arrangement := range 12 {
			t.Logf("arrangement %d: %d of %d frames had old bytes",
				arrangement, stale[arrangement], sent[arrangement])
			control := arrangement < 4
			if sent[arrangement] < 12 || control && stale[arrangement] < 12 ||
				!control && stale[arrangement] > 0 {
				t.Errorf("arrangement %d: %d of %d frames had old bytes",
					arrangement, stale[arrangement], sent[arrangement])
			}
		}
	}
	testbed.Inside(t, needs, func(t *testing.T) {
		p, lease := leaseVF(t, "igb")
		runSelftest(t, "wire", lease.BDF, "type1")
		if why := p.Snapshot()[0].Lost; why != "" {
			t.Log("the VF is taken away: ", why)
		} else {
			t.Error("a storm of accesses that the IOMMU refused was not noticed")
		}
		p.Return(lease)
		for p.Snapshot()[0].State == vf.Resetting {
			time.Sleep(10 * time.Millisecond)
		}
		if s := p.Snapshot()[0]; s.State != vf.Quarantined {
			t.Errorf("after a storm the VF is %+v", s)
		}
		noSplats(t)
	})
}

// Behind an IOMMU that cannot make accesses snoop the caches, a VF gets zeroed memory only, too.
func TestUnsnoopedDevices(t *testing.T) {
	needs := patched
	needs.NoSnoop = true
	bothWays(t, needs, func(t *testing.T, iommu string) {
		runSelftest(t, "unsnooped", bindEdu(t)[0], iommu)
	})
}

// leaseVF leases a VF of a PF with that driver.
func leaseVF(t *testing.T, driver string) (*vf.Pool, vf.Lease) {
	t.Helper()
	cfg := vf.Config{PFs: []string{driver}, NumVFs: 1, Run: t.TempDir(), Node: "selftests"}
	p, err := vf.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	owner, err := vf.Process(vf.Bench, "selftests", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	lease, err := p.Lease(owner, vf.Want{})
	late := time.Now().Add(time.Minute)
	for errors.Is(err, vf.ErrLinkDown) && time.Now().Before(late) {
		time.Sleep(100 * time.Millisecond) // the link is late
		lease, err = p.Lease(owner, vf.Want{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return p, lease
}

// onTheWire counts the frames, and those with a byte of the poison with which free memory was
// filled.
func onTheWire(t *testing.T, recording string) (sent, stale map[int]int) {
	t.Helper()
	const header, poison = 14, 0xee
	mark := []byte("fastiov")
	sent, stale = map[int]int{}, map[int]int{}
	for frame, err := range wire.Frames(recording) {
		if err != nil {
			t.Fatal(err)
		}
		if len(frame) < 1000 || !bytes.HasPrefix(frame[header:], mark) {
			continue
		}
		arrangement, page := int(frame[header+len(mark)]), frame[header+len(mark)+2:]
		sent[arrangement]++
		if bytes.IndexByte(page, poison) >= 0 {
			stale[arrangement]++
		}
	}
	return sent, stale
}

// bindEdu gives vfio-pci the four edu.
func bindEdu(t *testing.T) (edu []string) {
	t.Helper()
	devices, _ := filepath.Glob("/sys/bus/pci/devices/*")
	for _, device := range devices {
		if id, err := os.ReadFile(device + "/device"); err != nil ||
			strings.TrimSpace(string(id)) != "0x11e8" {
			continue
		}
		bdf := filepath.Base(device)
		if err := os.WriteFile(device+"/driver_override", []byte("vfio-pci"), 0); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("/sys/bus/pci/drivers_probe", []byte(bdf), 0); err != nil {
			t.Fatal(err)
		}
		edu = append(edu, bdf)
	}
	if len(edu) != 4 {
		t.Fatalf("the testbed has %d edu devices", len(edu))
	}
	return edu
}

// runSelftest runs a program and reads its results in TAP format. It looks at the kernel's log at
// once, as the next program may push lines out of the log's ring.
func runSelftest(t *testing.T, program, device, iommu string, env ...string) {
	before := splats(t)
	cmd := exec.CommandContext(t.Context(), filepath.Join(testbed.SelftestsDir, program))
	cmd.Env = slices.Concat(os.Environ(), env,
		[]string{"FASTIOV_TEST_DEVICE=" + device, "FASTIOV_TEST_IOMMU=" + iommu})
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
		t.Run(what, func(t *testing.T) {
			// no test may be skipped, since the kernel is ours
			if !ok || strings.HasPrefix(what, "# SKIP") {
				t.Fail()
			}
		})
	}
	if err := cmd.Wait(); err != nil || results == 0 {
		t.Error(errors.Join(err,
			errors.New("the program did not run to its end without a failure")))
	}
	noSplats(t, before...)
}

// noSplats fails the test if the kernel complains, but for what it has said before.
func noSplats(t *testing.T, before ...string) {
	t.Helper()
	for _, line := range splats(t) {
		if !slices.Contains(before, line) {
			t.Error("the kernel complains: ", line)
		}
	}
}

// races is of a report about a data race in what the patches change: others have theirs too.
var races = regexp.MustCompile(`KCSAN: .*(\[fastiovd\]|vfio|iommu|iopt|shmem|hugetlb)`)

func kernelLog(t *testing.T) string {
	t.Helper()
	log, err := exec.Command("dmesg").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(log)
}

// splats returns the lines of the kernel's log at which reports of errors in the kernel begin.
func splats(t *testing.T) (found []string) {
	t.Helper()
	for line := range strings.Lines(kernelLog(t)) {
		if strings.Contains(line, "KCSAN") && !races.MatchString(line) {
			continue
		}
		for _, sign := range []string{"BUG:", "WARNING:", "Oops", "general protection",
			"possible circular locking", "KASAN", "refcount_t:", "blocked for more than",
			"Bad page"} {
			if strings.Contains(line, sign) {
				found = append(found, strings.TrimSpace(line))
			}
		}
	}
	return found
}
