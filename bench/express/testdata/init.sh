#!/bin/busybox sh
# Process 1 of the host that counts instructions: the tools of the machine, modules from the testbed's root, and the test.
b=/bin/busybox
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/
end() {
	echo "$*" >/dev/console
	$b poweroff -f
}
$b mkdir -p /proc /sys /dev /tmp /run /lower
$b mount -t devtmpfs dev /dev && $b mount -t proc proc /proc && $b mount -t sysfs sys /sys || end "no /proc"
$b mount -t bpf bpf /sys/fs/bpf || end "no BPF file system"
$b mount -t tmpfs run /run
while read -r module; do $b insmod "$module" || end "module $module does not load"; done </modules
$b mount -t erofs -o ro /dev/vda /lower || end "/dev/vda holds no root image"
$b mount -t proc proc /lower/proc
echo /modprobe >/proc/sys/kernel/modprobe
for module in veth bridge nf_tables nf_conntrack nf_nat nf_flow_table; do
	/modprobe "$module" || end "module $module does not load"
done
cd /tmp || end "no /tmp"
FASTIOV_TEST_INSTRUCTIONS_INSIDE=1 /test -test.v -test.run '^TestInstructions$' >/dev/console 2>&1
end "the host has ended"
