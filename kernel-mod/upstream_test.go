//go:build patched

package kernelmod_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/fastiov/fastiov/testbed"
)

// reproducers lists the programs of the directory upstream. Each exits with 1 if the kernel has the
// fault that it shows, and with 0 if not.
var reproducers = []string{"collapse", "udmabuf", "close"}

// TestReproducers runs them on Debian's kernel, which has the faults, and on fastiov's, which has
// not. They use nothing of fastiov's. Debian's kernel zeroes all memory that it hands out unless
// it is told not to.
func TestReproducers(t *testing.T) {
	for _, kernel := range []string{testbed.PatchedKernel, testbed.DebianKernel} {
		t.Run(kernel, func(t *testing.T) {
			faulty := kernel == testbed.DebianKernel
			needs := testbed.Needs{
				Kernel: kernel, MemoryMiB: patched.MemoryMiB, Files: map[string]string{},
			}
			if faulty {
				needs.Append = "init_on_alloc=0"
			}
			if !testbed.Within() {
				dir := t.TempDir()
				makeReproducers(t, dir)
				for _, program := range reproducers {
					needs.Files[program] = filepath.Join(dir, program)
				}
			}
			testbed.Inside(t, needs, func(t *testing.T) {
				args := map[string][]string{"close": bindVFs(t)}
				for _, program := range reproducers {
					t.Run(program, func(t *testing.T) {
						out, err := exec.CommandContext(t.Context(), "/share/"+program,
							args[program]...).CombinedOutput()
						t.Logf("%s", out)
						var failed *exec.ExitError
						reproduced := errors.As(err, &failed) && failed.ExitCode() == 1
						if reproduced != faulty || err != nil && !reproduced {
							t.Errorf("%v; the fault should be there: %v", err, faulty)
						}
					})
				}
				for _, line := range splats(t) {
					t.Error("the kernel complains: ", line)
				}
			})
		})
	}
}

// bindVFs makes the igb's VFs and binds them to vfio-pci.
func bindVFs(t *testing.T) (vfs []string) {
	t.Helper()
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	pfs, _ := filepath.Glob("/sys/bus/pci/drivers/igb/*/sriov_numvfs")
	if len(pfs) == 0 {
		t.Fatal("the testbed has no igb with VFs")
	}
	pf := filepath.Dir(pfs[0])
	const most = 7
	write(pf+"/sriov_numvfs", "0") // a former test's
	write(pf+"/sriov_drivers_autoprobe", "0")
	write(pf+"/sriov_numvfs", strconv.Itoa(most))
	for i := range most {
		vf, err := filepath.EvalSymlinks(pf + "/virtfn" + strconv.Itoa(i))
		if err != nil {
			t.Fatal(err)
		}
		write(vf+"/driver_override", "vfio-pci")
		write("/sys/bus/pci/drivers_probe", filepath.Base(vf))
		vfs = append(vfs, filepath.Base(vf))
	}
	t.Cleanup(func() { write(pf+"/sriov_numvfs", "0") })
	return vfs
}
