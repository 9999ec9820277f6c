#!/bin/busybox sh
# Process 1 of the testbed host: a node with nothing running on it but sshd. "testbed ready" on the console means that sshd accepts.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
umask 022
say() { echo "testbed: $*" >/dev/console; }
# A kernel without a directory of modules has built in what it needs.
modprobe() { [ ! -d "/lib/modules/$(uname -r)" ] || command modprobe "$@"; }

mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sys /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=620,gid=5,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=755 run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf
ln -sf /proc/self/fd /dev/fd
read -r controllers </sys/fs/cgroup/cgroup.controllers
for controller in $controllers; do echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control; done
hostname testbed

# The way in first; the node's own devices load while sshd starts.
modprobe -aq virtio_net 9pnet_virtio 9p af_packet
ip link set lo up
for dev in /sys/class/net/*; do
	case $(readlink "$dev/device/driver") in
	*/virtio_net)
		ip addr add 10.0.3.15/24 dev "${dev##*/}"
		ip link set "${dev##*/}" up
		ip route add default via 10.0.3.2
		;;
	esac
done
if mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose share /share; then
	mkdir -p /root/.ssh /run/sshd
	cp /share/authorized_keys /root/.ssh/ || say "no authorized_keys in the shared directory: nobody can log in"
	chmod 600 /root/.ssh/authorized_keys
else
	say "no shared directory: nobody can log in"
fi
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key

case $(grep -o -m1 -w -e svm -e vmx /proc/cpuinfo) in
svm) kvm=kvm_amd ;;
vmx) kvm=kvm_intel ;;
*) kvm= ;;
esac
[ -z "$kvm" ] || modprobe "$kvm" nested=1 || say "$kvm does not load: no nested microVMs"
modprobe -aq vfio_iommu_type1 vfio_pci igb nvme vhost_vsock vhost_net tun 8021q virtio_rng || say "a node module is missing"
chmod 666 /dev/kvm /dev/vhost-vsock 2>/dev/null
# Guest memory in huge pages: fewer faults, fewer IOMMU mappings, shorter nested page walks.
echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled
sysctl -qw kernel.panic_on_oops=0 net.ipv4.ip_forward=1 2>/dev/null
/usr/sbin/sshd || say "sshd does not start"
say "$(uname -r) up in $(cut -d' ' -f1 /proc/uptime) s"
echo "testbed ready" >/dev/console

# From here on: reap what lost its parent, and power off when asked to.
trap 'say "powering off"; sync; poweroff -f' TERM USR1 USR2
while :; do
	wait
	sleep 3600 &
	wait $!
done
