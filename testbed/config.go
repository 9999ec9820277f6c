package testbed

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A Config describes the host to boot. The zero value of a field means its default.
type Config struct {
	Name      string // the testbed's name, default "default"
	NICs      int    // igb network cards with 7 VFs each, default 1
	NVMeVFs   int    // VFs of an NVMe controller; 0: no controller
	MemoryMiB int    // default 8192
	CPUs      int    // default 2 if emulated by fastiov's QEMU on two or more, else 1
	Kernel    string // DebianKernel, the default, or another below
	Append    string // to the kernel's command line
	Accel     string // kvm, tcg, or empty: kvm if it can boot a guest and nest, else tcg
	Edu       bool   // four of QEMU's edu, devices whose DMA a test can control
	NoSnoop   bool   // the IOMMU cannot make devices' accesses snoop the caches
	// TCP ports of the host that appear at the same ports of this machine's loopback
	Forward []int
}

// The kernels that a testbed can boot: Debian's, fastiov's own, and two variants of it, which find
// their own mistakes and data races. All but Debian's are built when they are first asked for.
const (
	DebianKernel  = "debian"
	PatchedKernel = "patched"
	DebugKernel   = "debug"
	KCSANKernel   = "kcsan"
)

var kernels = []string{DebianKernel, PatchedKernel, DebugKernel, KCSANKernel}

const (
	defaultName = "default"

	vfsPerNIC  = 7
	maxNICs    = 8
	maxNVMeVFs = 127
	minMemory  = 1024
)

var nameRule = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = defaultName
	}
	if c.Kernel == "" {
		c.Kernel = DebianKernel
	}
	if c.NICs == 0 {
		c.NICs = 1
	}
	if c.MemoryMiB == 0 {
		c.MemoryMiB = 8192
	}
	return c
}

// down returns the command that ends the testbed.
func (c Config) down() string {
	if c.Name == defaultName {
		return "fastiov testbed down"
	}
	return "fastiov testbed down --name " + c.Name
}

func (c Config) check() error {
	switch {
	case !nameRule.MatchString(c.Name):
		return fmt.Errorf("testbed name %q: use up to 32 lower-case letters, digits and dashes",
			c.Name)
	case !slices.Contains(kernels, c.Kernel):
		return fmt.Errorf("kernel %q: use %s", c.Kernel, strings.Join(kernels, ", "))
	case c.NICs < 1 || c.NICs > maxNICs:
		return fmt.Errorf("%d NICs: a testbed has 1 to %d", c.NICs, maxNICs)
	case c.NVMeVFs < 0 || c.NVMeVFs > maxNVMeVFs:
		return fmt.Errorf("%d NVMe VFs: the controller has 0 to %d", c.NVMeVFs, maxNVMeVFs)
	case c.MemoryMiB < minMemory || c.MemoryMiB > 1<<20:
		return fmt.Errorf("%d MiB of memory: a testbed has %d or more", c.MemoryMiB, minMemory)
	case c.CPUs < 0 || c.CPUs > 64:
		return fmt.Errorf("%d CPUs: a testbed has 1 to 64", c.CPUs)
	case c.Accel != "" && c.Accel != "kvm" && c.Accel != "tcg":
		return fmt.Errorf("accelerator %q: use kvm or tcg", c.Accel)
	}
	for _, p := range c.Forward {
		if p < 1 || p > 65535 {
			return fmt.Errorf("port %d: a port is between 1 and 65535", p)
		}
	}
	return nil
}

// serves reports whether a host booted as c has all that want asks for.
func (c Config) serves(want Config) bool {
	for _, p := range want.Forward {
		if !slices.Contains(c.Forward, p) {
			return false
		}
	}
	return c.NICs >= want.NICs && c.NVMeVFs >= want.NVMeVFs && c.MemoryMiB >= want.MemoryMiB &&
		c.CPUs >= want.CPUs &&
		c.Kernel == want.Kernel && c.Append == want.Append && c.NoSnoop == want.NoSnoop &&
		(want.Accel == "" || c.Accel == want.Accel) && (c.Edu || !want.Edu)
}

func (c Config) String() string {
	s := fmt.Sprintf("%s, %d CPUs, %d MiB, %d igb VFs",
		c.Accel, c.CPUs, c.MemoryMiB, c.NICs*vfsPerNIC)
	if c.Kernel != DebianKernel {
		s += ", " + c.Kernel + " kernel"
	}
	if c.Append != "" {
		s += ", " + c.Append
	}
	if c.NVMeVFs > 0 {
		s += fmt.Sprintf(", %d NVMe VFs", c.NVMeVFs)
	}
	if c.Edu {
		s += ", edu"
	}
	if c.NoSnoop {
		s += ", no snoop control"
	}
	return s
}
