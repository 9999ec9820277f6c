package qemu

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/fastiov/fastiov/node-agent/sandbox"
	"github.com/fastiov/fastiov/node-agent/sandbox/jail"
)

// A command is QEMU's command line while it grows, with the files that QEMU inherits. QEMU runs as
// a user who may open next to nothing. So every file it uses is passed to it open, and it gets
// numbers, not paths.
type command struct {
	args  []string
	files []*os.File
}

func (c *command) add(args ...string) { c.args = append(c.args, args...) }

// pass hands f over and returns its number in QEMU.
func (c *command) pass(f *os.File) int {
	c.files = append(c.files, f)
	return 2 + len(c.files) // after stdin, stdout and stderr
}

// set hands f over and returns a path that QEMU takes wherever it would open a file by name.
func (c *command) set(f *os.File) string {
	fd := c.pass(f)
	c.add("-add-fd", fmt.Sprintf("fd=%d,set=%d", fd, fd))
	return fmt.Sprintf("/dev/fdset/%d", fd)
}

// cmd is the process to start: no shell, no environment, what it says goes to log.
func (c *command) cmd(binary string, log *os.File) *exec.Cmd {
	return &exec.Cmd{Args: append([]string{binary}, c.args...), Stdout: log, Stderr: log,
		ExtraFiles: c.files}
}

// handed holds the files that one VMM inherits.
type handed struct {
	kernel, initrd *os.File // memfds: any process that has them can read them
	kvm, vsock     *os.File
	ram            memory
	region         nvdimm      // the root image as memory; none: as a disk
	root           []*os.File  // files that make up the disk
	disk           description // of it, if they are several
	tap, vhost     *os.File    // a NIC other than a VF, and the kernel's part of it, if it has one
	console        *os.File
	control        *os.File // listening socket
}

// describe describes the microVM. It has as few devices as a Linux guest needs: each further one
// would have to be emulated and probed, and could be attacked.
func describe(spec sandbox.Spec, cid int, parameters []string, h handed) *command {
	c := &command{}
	c.add("-name", spec.ID, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none")
	c.add("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny")
	// QEMU waits here, before it makes a machine, until a client connects. This holds it until its
	// record is written.
	c.add("-chardev", fmt.Sprintf("socket,id=qmp,fd=%d,server=on,wait=on", c.pass(h.control)),
		"-mon", "chardev=qmp,mode=control")
	c.add("-S") // the first guest instruction is ours to time
	machine := "q35,memory-backend=ram,dump-guest-core=off,smbus=off,sata=off,usb=off,vmport=off," +
		"hpet=off,i8042=off,graphics=off"
	memory := fmt.Sprintf("%dM", spec.MemoryMiB)
	if h.region.file != nil {
		machine += ",nvdimm=on"
		memory += fmt.Sprintf(",slots=1,maxmem=%dM", spec.MemoryMiB+int(h.region.size>>20))
	}
	c.add("-machine", machine)
	c.add("-accel", "kvm,device="+c.set(h.kvm), "-cpu", "host", "-smp", "1", "-m", memory)
	c.add("-object",
		fmt.Sprintf(
			"memory-backend-file,id=ram,size=%dM,share=on,align=%d,mem-path=/proc/self/fd/%d",
			spec.MemoryMiB, hugePage, c.pass(h.ram.memfd)))
	c.add("-kernel", fmt.Sprintf("/proc/self/fd/%d", c.pass(h.kernel)), "-initrd",
		fmt.Sprintf("/proc/self/fd/%d", c.pass(h.initrd)))
	if h.ram.registration != nil {
		c.pass(h.ram.registration)
	}
	c.add("-append", strings.Join(parameters, " "))
	c.add("-chardev", "file,id=console,append=on,path="+c.set(h.console), "-serial",
		"chardev:console")
	if h.region.file != nil {
		c.region(h.region)
	} else {
		c.disk(h.root, h.disk)
		c.add("-device", "virtio-blk-pci,drive=root,disable-legacy=on")
	}
	c.add("-device", fmt.Sprintf("vhost-vsock-pci,guest-cid=%d,vhostfd=%d,disable-legacy=on", cid,
		c.pass(h.vsock)))
	if pci := spec.PCI(); pci != nil { // a room has no sysfs
		c.add("-device", "vfio-pci,id=vf,rombar=0,sysfsdev="+jail.Device(pci.BDF))
	}
	if h.tap != nil {
		c.tap(h, spec.NIC.MAC)
	}
	return c
}

// tap adds a NIC whose packets the kernel carries where it can, else QEMU.
func (c *command) tap(h handed, mac string) {
	backend := fmt.Sprintf("tap,id=tap,fd=%d", c.pass(h.tap))
	if h.vhost != nil {
		backend += fmt.Sprintf(",vhost=on,vhostfd=%d", c.pass(h.vhost))
	}
	c.add("-netdev", backend,
		"-device", "virtio-net-pci,netdev=tap,romfile=,disable-legacy=on,mac="+mac)
}

// kernelParameters spare the guest kernel all that a microVM does not need. Each is a wait, a probe
// or a test at boot.
var kernelParameters = []string{
	"console=ttyS0", "quiet", // every character costs two exits
	"panic=-1", "reboot=t", // a panic is a reboot is, by -no-reboot, the end
	"tsc=reliable", "no_timer_check", "nowatchdog", "rcupdate.rcu_expedited=1",
	"cryptomgr.notests", "audit=0", "lsm=capability",
	// All that there is lies on bus 0. The kernel would look for a device in each slot of the other
	// 255: of the 30,000 exits of a cold start these were 16,000, each of them QEMU's to answer.
	"pci=lastbus=0",
}

// On emulated CPUs guests were seen to idle for ever, waiting for an interrupt that had come. With
// a periodic timer they look again.
var emulatedParameters = []string{"nohz=off", "highres=off", "lapic=notscdeadline"}

// parametersFor returns the parameters for guests of a host with this /proc/cpuinfo.
func parametersFor(cpuinfo string) []string {
	if strings.Contains(cpuinfo, "QEMU TCG CPU") {
		return slices.Concat(kernelParameters, emulatedParameters)
	}
	return kernelParameters
}
