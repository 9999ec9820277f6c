/* SPDX-License-Identifier: GPL-2.0-only */
/* The guest's side of a vhost-vsock device, as much of it as gets one packet. */
#ifndef SELFTEST_VHOST_H
#define SELFTEST_VHOST_H

#include "vfio.h"

#include <linux/vhost.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ring.h>
#include <linux/virtio_vsock.h>
#include <linux/vm_sockets.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

/*
 * Makes the host's kernel write a packet to that address of the guest's memory: somebody connects
 * to a guest with that number.
 */
static inline void vhost_packet(uint8_t *memory, size_t size, uint64_t address, uint32_t guest)
{
	struct { struct vhost_memory head; struct vhost_memory_region all; } table = {
		{ .nregions = 1 }, { .memory_size = size, .userspace_addr = (uintptr_t)memory },
	};
	struct sockaddr_vm there = { .svm_family = AF_VSOCK, .svm_cid = guest, .svm_port = 1 };
	uint64_t features = 1ULL << VIRTIO_F_VERSION_1, cid = guest;
	int vhost = must(open("/dev/vhost-vsock", O_RDWR)), running = 1, called = -1, s;
	volatile struct vring_used *used = NULL;

	must(ioctl(vhost, VHOST_SET_OWNER));
	must(ioctl(vhost, VHOST_SET_FEATURES, &features));
	must(ioctl(vhost, VHOST_SET_MEM_TABLE, &table));
	must(ioctl(vhost, VHOST_VSOCK_SET_GUEST_CID, &cid));
	/* the queue that sends, and the one that receives */
	for (unsigned int i = 2; i-- > 0;) {
		struct vhost_vring_state number = { i, 8 }, base = { i, 0 };
		struct vhost_vring_file kick = { i, must(eventfd(0, 0)) },
			call = { i, must(eventfd(0, 0)) };
		struct vring ring;

		vring_init(&ring, number.num, memory + (i + 1) * 0x10000, PAGE);
		if (i == 0) {
			ring.desc[0] = (struct vring_desc){ address, PAGE / 2,
				VRING_DESC_F_WRITE, 0 };
			ring.avail->ring[0] = 0;
			ring.avail->idx = 1;
			used = ring.used;
			called = call.fd;
		}
		must(ioctl(vhost, VHOST_SET_VRING_NUM, &number));
		must(ioctl(vhost, VHOST_SET_VRING_BASE, &base));
		must(ioctl(vhost, VHOST_SET_VRING_ADDR, &(struct vhost_vring_addr){
			i, 0, (uintptr_t)ring.desc, (uintptr_t)ring.used,
				(uintptr_t)ring.avail, 0 }));
		must(ioctl(vhost, VHOST_SET_VRING_KICK, &kick));
		must(ioctl(vhost, VHOST_SET_VRING_CALL, &call));
		close(kick.fd);
		if (i)
			close(call.fd);
	}
	must(ioctl(vhost, VHOST_VSOCK_SET_RUNNING, &running));
	s = must(socket(AF_VSOCK, SOCK_STREAM | SOCK_NONBLOCK, 0));
	if (!connect(s, (struct sockaddr *)&there, sizeof(there)) || errno != EINPROGRESS)
		ksft_exit_fail_msg("connecting to the guest: %s\n", strerror(errno));
	if (poll(&(struct pollfd){ called, POLLIN, 0 }, 1, 10000) != 1 || used->idx != 1)
		ksft_exit_fail_msg("vhost used %u buffers\n", used->idx);
	close(s);
	close(called);
	close(vhost);
}

#endif
