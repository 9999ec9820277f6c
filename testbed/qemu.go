package testbed

import (
	"fmt"
	"strings"

	"github.com/fastiov/fastiov/node-agent/image"
)

// The management network. The host's address and gateway are part of its image.
const (
	manageNet  = "10.0.3.0/24"
	manageAddr = "10.0.3.15"
	wireNet    = "10.0.2.0/24"
)

// consoleFD is QEMU's descriptor of its console.
const consoleFD = 3

// qemuArgs returns QEMU's command line for the host c in directory d.
func qemuArgs(c Config, d dir, img image.Boot, sshPort int) []string {
	var a args
	a.machine(c)
	a.add("-m", fmt.Sprint(c.MemoryMiB), "-smp", fmt.Sprint(c.CPUs))
	a.add("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-name", "fastiov-testbed-"+c.Name)
	a.add("-chardev", fmt.Sprintf("socket,id=con,fd=%d,logfile=%s", consoleFD, esc(d.Console())),
		"-serial", "chardev:con")
	a.add("-qmp", "unix:"+esc(d.qmpSocket())+",server=on,wait=off")
	snoop := "on" // memory whose zeroing is deferred goes only to devices that are made to snoop
	if c.NoSnoop {
		snoop = "off"
	}
	a.add("-device", "intel-iommu,intremap=on,snoop-control="+snoop)
	a.add("-device", "virtio-rng-pci")
	a.add("-blockdev", "driver=file,node-name=root,read-only=on,filename="+esc(img.Root),
		"-device", "virtio-blk-pci,drive=root")
	a.add("-fsdev",
		"local,id=share,security_model=mapped-xattr,multidevs=remap,path="+esc(d.Share()),
		"-device", "virtio-9p-pci,fsdev=share,mount_tag=share")
	a.manage(c, sshPort)
	for i := range c.NICs {
		a.nic(i, d.Wire(i))
	}
	if c.NVMeVFs > 0 {
		a.nvme(c.NICs, c.NVMeVFs)
	}
	if c.Edu {
		a.edu(c.NICs + 1)
	}
	a.add("-kernel", img.Kernel, "-initrd", img.Initrd,
		// A busy machine delays what the kernel measures.
		// no_timer_check: it finds the emulated timer late, and panics.
		// tsc=reliable: it finds the TSC wrong, and gives it up. The clocks of nested guests then
		// stand still while other guests run.
		"-append",
		strings.TrimSpace("console=ttyS0 quiet loglevel=4 panic=-1 no_timer_check tsc=reliable "+
			"intel_iommu=on iommu=pt mitigations=off "+c.Append))
	return a
}

type args []string

func (a *args) add(s ...string) { *a = append(*a, s...) }

func (a *args) machine(c Config) {
	if c.Accel == "kvm" {
		// With KVM's own interrupt controller QEMU cannot remap interrupts; emulation has no such
		// split.
		a.add("-machine", "q35,accel=kvm,kernel-irqchip=split", "-cpu", "host")
		return
	}
	a.add("-machine", "q35", "-accel", "tcg,thread=multi",
		"-cpu", "max,+svm,-erms,-fsrm,-fzrm,-fsrs,-fsrc")
}

func (a *args) manage(c Config, sshPort int) {
	net := "user,id=manage,ipv6=off,net=" + manageNet + ",dhcpstart=" + manageAddr +
		forward(sshPort, 22)
	for _, p := range c.Forward {
		net += forward(p, p)
	}
	a.add("-netdev", net, "-device", "virtio-net-pci,netdev=manage,romfile=,mac=02:00:00:00:00:ff")
}

func forward(here, there int) string {
	return fmt.Sprintf(",hostfwd=tcp:127.0.0.1:%d-%s:%d", here, manageAddr, there)
}

// nic adds an igb on its own wire. At the other end of the wire is this machine as 10.0.2.2.
func (a *args) nic(i int, pcap string) {
	port, wire := fmt.Sprintf("nic%dport", i), fmt.Sprintf("wire%d", i)
	a.add("-device", fmt.Sprintf("pcie-root-port,id=%s,chassis=%d,slot=%d", port, i+1, i+1),
		"-netdev", "user,id="+wire+",ipv6=off,net="+wireNet,
		"-object", "filter-dump,id=dump-"+wire+",netdev="+wire+",file="+esc(pcap),
		"-device", fmt.Sprintf("igb,bus=%s,netdev=%s,romfile=,mac=02:00:00:00:%02x:00",
			port, wire, i))
}

func (a *args) nvme(slot, vfs int) {
	a.add("-device", fmt.Sprintf("pcie-root-port,id=nvmeport,chassis=%d,slot=%d", slot+1, slot+1),
		"-device", "nvme-subsys,id=nvmesub",
		"-device", fmt.Sprintf("nvme,id=nvme,serial=fastiov,bus=nvmeport,subsys=nvmesub,"+
			"sriov_max_vfs=%d,sriov_vq_flexible=%d,sriov_vi_flexible=%d,max_ioqpairs=%d,msix_qsize=%d",
			vfs, 2*vfs, vfs, 2*vfs+2, vfs+1))
}

// edu adds four of QEMU's edu. The last two are functions of one card behind a port, which can only
// be reset together.
func (a *args) edu(slot int) {
	a.add("-device", "edu", "-device", "edu",
		"-device", fmt.Sprintf("pcie-root-port,id=eduport,chassis=%d,slot=%d", slot+1, slot+1),
		"-device", "edu,bus=eduport,addr=0.0,multifunction=on",
		"-device", "edu,bus=eduport,addr=0.1")
}

// esc doubles commas, which would end a value of a QEMU option.
func esc(path string) string { return strings.ReplaceAll(path, ",", ",,") }
