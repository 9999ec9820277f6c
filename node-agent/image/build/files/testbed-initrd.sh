#!/bin/busybox sh
# Process 1 of the testbed host until its root stands: the read-only image under a tmpfs, so that every boot begins alike.
b=/bin/busybox
fail() {
	echo "testbed: $*; the console log has the kernel's reason" >/dev/console
	$b poweroff -f
}
$b mount -t devtmpfs dev /dev || fail "no devtmpfs"
while read -r module; do
	$b insmod "$module" || fail "module $module does not load"
done </modules
$b mount -t erofs -o ro /dev/vda /lower || fail "/dev/vda holds no root image"
$b mount -t tmpfs -o mode=755,size=50% rw /rw || fail "no tmpfs"
$b mkdir /rw/upper /rw/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work root /root || fail "no overlay"
$b mount -o move /dev /root/dev
exec $b switch_root /root /sbin/init
