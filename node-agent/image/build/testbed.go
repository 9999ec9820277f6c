package build

import (
	"context"
	_ "embed"
	"os"
	"path/filepath"
	"strings"

	"github.com/fastiov/fastiov/node-agent/image"
	"github.com/fastiov/fastiov/node-agent/image/rootfs"
)

// testbedPackages lists the packages of the host that the testbed boots: a node, with the tools
// that people want when they look at one.
var testbedPackages = []string{kernelPackage, "bash", "busybox-static", "ca-certificates",
	"coreutils", "iproute2", "kmod", "mount",
	"openssh-server", "pciutils", "procps", "qemu-system-x86", "util-linux"}

// testbedOmits lists packages that only maintainer scripts and a package manager need.
var testbedOmits = []string{
	kernelPackage, "linux-image-*", "linux-base", "initramfs-tools*", "klibc-utils", "libklibc",
	"perl*", "libperl*", "debconf*", "dpkg", "adduser", "ucf", "gcc-14-base", "cpio", "logsave",
	"dracut-install", "libtext-*", "libfile-*", "libnumber-*", "systemd", "libsystemd-shared",
	"udev", "runit-helper",
}

// testbedDrivers lists the kernel's driver directories that a host without a screen, disks or radio
// can use; the rest of the kernel is kept whole.
var testbedDrivers = []string{
	"acpi", "block", "char", "crypto", "dca", "dma", "hwmon", "i2c", "iommu", "md", "net/dummy.ko",
	"net/tun.ko", "net/tap.ko", "net/veth.ko", "net/macvlan.ko", "net/macvtap.ko", "net/ipvlan",
	"net/vxlan", "net/geneve.ko", "net/ifb.ko", "net/bonding", "net/vrf.ko", "net/virtio_net.ko",
	"net/net_failover.ko", "net/netconsole.ko", "net/nlmon.ko", "net/netkit.ko", "net/wireguard",
	"net/ethernet/intel", "net/ethernet/mellanox", "nvdimm", "nvme", "pci", "pps", "ptp", "thermal",
	"vdpa", "vfio", "vhost", "virt", "virtio",
}

// applets lists the busybox commands that get a name of their own where no package brings one.
var applets = []string{
	"arping", "awk", "clear", "cpio", "diff", "find", "grep", "gunzip", "gzip", "hexdump",
	"hostname", "less", "nc", "netstat", "nslookup", "ping", "poweroff", "reboot", "sed", "sh",
	"strings", "tar", "telnet", "traceroute", "unxz", "unzip", "vi", "wget", "which", "xargs",
	"xxd", "zcat",
}

// testbedBootModules lists the modules that are needed before the root image is mounted; erofs
// looks for crc32c by its algorithm, not by its module.
var testbedBootModules = []string{"crc32c_generic", "virtio_blk", "erofs", "overlay"}

var (
	//go:embed files/testbed-initrd.sh
	testbedInitrd []byte
	//go:embed files/testbed-init.sh
	testbedInit []byte
	//go:embed files/sshd_config
	sshdConfig []byte
)

// Testbed returns the files that the testbed's host boots from: Debian's kernel, an initrd that
// mounts the root image under a tmpfs overlay, and the root image.
func (b *Builder) Testbed(ctx context.Context) (image.Boot, error) {
	make := func(ctx context.Context, dir string, say func(string, ...any)) error {
		debs, err := b.fetch(ctx, say, hostVersions(), testbedPackages)
		if err != nil {
			return err
		}
		return buildTestbed(ctx, dir, say, debs)
	}
	dir, err := b.Get(ctx, "testbed", testbedInputs(), make)
	boot := image.BootIn(dir)
	boot.Root = filepath.Join(dir, image.RootName)
	return boot, err
}

func testbedInputs() []string {
	inputs := []string{"testbed 3", hostVersions().inputs()}
	for _, list := range [][]string{
		testbedPackages, testbedOmits, testbedDrivers, applets, testbedBootModules,
	} {
		inputs = append(inputs, strings.Join(list, " "))
	}
	for _, file := range [][]byte{testbedInitrd, testbedInit, sshdConfig} {
		inputs = append(inputs, string(file))
	}
	return inputs
}

// TestbedKey differs from that of another version of fastiov if its testbed is another host.
func TestbedKey() string { return image.Hash(testbedInputs()) }

func buildTestbed(ctx context.Context, dir string, say func(string, ...any), debs []deb) error {
	t, err := unpacked(ctx, dir, say, without(debs, testbedOmits...))
	if err != nil {
		return err
	}
	defer t.Close()
	say("unpacking the kernel")
	release, err := unpackKernel(ctx, t, debs, keepTestbedModule)
	if err != nil {
		return err
	}
	m, err := modulesOf(t)
	if err != nil {
		return err
	}
	list, err := m.inLoadOrder(testbedBootModules...)
	if err != nil {
		return err
	}
	if err := writeTestbedInitrd(t, list, filepath.Join(dir, image.InitrdName)); err != nil {
		return err
	}
	kernel, err := readKernel(t, release)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, image.KernelName), kernel, 0o644); err != nil {
		return err
	}
	if err := t.Remove("boot"); err != nil {
		return err
	}
	say("indexing the modules of Linux %s", release)
	if err := indexModules(ctx, t, release, dir); err != nil {
		return err
	}
	if err := furnishTestbed(t); err != nil {
		return err
	}
	say("writing the root image")
	packages := filepath.Join(dir, "packages")
	if err := os.WriteFile(packages, []byte(manifest(debs)), 0o644); err != nil {
		return err
	}
	return t.WriteImage(filepath.Join(dir, image.RootName))
}

func keepTestbedModule(name string) bool {
	_, driver, ok := strings.Cut(name, "/kernel/drivers/")
	if !ok {
		return !strings.Contains(name, "/kernel/sound/")
	}
	for _, kept := range testbedDrivers {
		if strings.HasPrefix(driver, kept) || strings.HasPrefix(kept, driver) {
			return true
		}
	}
	return false
}

func writeTestbedInitrd(t *rootfs.Tree, list []module, name string) error {
	busybox, err := t.Read("bin/busybox")
	if err != nil {
		return err
	}
	i := newInitrd(name)
	for _, dir := range []string{"bin", "dev", "lower", "rw", "root"} {
		i.dir(dir)
	}
	i.write("bin/busybox", 0o755, busybox)
	i.write("init", 0o755, testbedInitrd)
	i.modules("modules", list)
	return i.close()
}

// furnishTestbed writes what maintainer scripts would have, and the host's init.
func furnishTestbed(t *rootfs.Tree) error {
	if err := accounts(t, "root:0:/root:/bin/bash", "sshd:101:/run/sshd:/usr/sbin/nologin",
		"nobody:65534:/:/usr/sbin/nologin"); err != nil {
		return err
	}
	if err := certificates(t); err != nil {
		return err
	}
	if err := linkApplets(t, applets); err != nil {
		return err
	}
	if err := t.Mkdir("share", 0o755); err != nil {
		return err
	}
	if err := t.Remove("usr/sbin/init"); err != nil {
		return err
	}
	if err := t.Write("usr/sbin/init", 0o755, testbedInit); err != nil {
		return err
	}
	return writeAll(t, map[string]string{
		"etc/ssh/sshd_config": string(sshdConfig),
		"etc/hostname":        "testbed\n",
		"etc/resolv.conf":     "nameserver 10.0.3.3\n",
		"etc/profile":         "PATH=/usr/sbin:/usr/bin:/sbin:/bin\nPS1='\\u@\\h:\\w\\$ '\nexport PATH PS1\n",
	})
}
