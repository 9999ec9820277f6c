package bench

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine says on what is measured: the CPUs and the kernel. Figures of two machines, or of two
// kernels, are not compared.
func Machine() string {
	var name unix.Utsname
	_ = unix.Uname(&name)
	model := "unknown CPUs"
	b, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		if _, rest, found := strings.Cut(string(b), "model name\t: "); found {
			model, _, _ = strings.Cut(rest, "\n")
		}
	}
	return fmt.Sprintf("%d × %s, Linux %s", strings.Count(string(b), "processor\t:"), model,
		unix.ByteSliceToString(name.Release[:]))
}
