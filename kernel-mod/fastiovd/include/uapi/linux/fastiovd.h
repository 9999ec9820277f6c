/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * /dev/fastiovd: guest memory whose zeroing does not stand in the way of a start.
 *
 * A VMM with a passed-through device gives the device all of its guest's memory
 * at once, and the kernel zeroes every byte of it before it does.  A memfd that
 * is registered here is given to devices first and zeroed later, and yet, but with
 * FASTIOVD_TABLE, no byte that is not zeroed is ever reachable: the guest, the VMM and every other
 * process fault at their first access and find zeros, and vfio does not let a
 * device master the bus before all it can reach is zeroed.
 *
 * Who may open the device may register; give it to the node's agent alone.
 *
 *	int dev = open("/dev/fastiovd", O_RDWR | O_CLOEXEC);
 *	int ram = memfd_create("ram", MFD_CLOEXEC | MFD_ALLOW_SEALING);
 *	ftruncate(ram, size);
 *	fcntl(ram, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
 *	struct fastiovd_register r = {
 *		.size = sizeof(r), .policy = FASTIOVD_PAGECACHE, .memfd = ram,
 *		.flags = FASTIOVD_BACKGROUND,
 *	};
 *	int memory = ioctl(dev, FASTIOVD_REGISTER, &r);
 *
 * and then the VMM maps the memfd, shared, and maps it for DMA as it always did.
 *
 * The registration lives as long as the descriptor @memory, its copies included.
 * When one with FASTIOVD_PAGECACHE ends nothing happens to the memory: what was
 * not zeroed then still is before anybody sees it, but DMA mappings made from then
 * on are of zeroed pages.  With FASTIOVD_TOUCHMAP the memory stays what it is
 * until the memfd is gone; what ends is that memory is kept back for it.  With
 * FASTIOVD_TABLE what was not zeroed then is zeroed as it ends.
 *
 * While it lives, holes cannot be punched into the memfd (EBUSY): a device would
 * go on using the pages it has.
 */
#ifndef _UAPI_LINUX_FASTIOVD_H
#define _UAPI_LINUX_FASTIOVD_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* How zeroing is deferred. */
enum fastiovd_policy {
	/*
	 * DMA mappings take pages from the page cache, allocated but not zeroed;
	 * a page is zeroed when somebody other than a device first touches it,
	 * in the background, or at the latest when a device wants the bus.
	 */
	FASTIOVD_PAGECACHE = 1,
	/*
	 * DMA mappings allocate nothing: a page is allocated, zeroed, pinned and
	 * mapped for DMA when somebody first touches it, and before anybody sees
	 * it.  A device's access to a page that nobody has touched fails, and is
	 * lost, so this is for guests that touch what they hand to a device, as
	 * Linux does with init_on_alloc=1.  All of a DMA mapping counts as locked
	 * memory when it is made, and until it is gone the memfd cannot be sealed
	 * against writing.  None of the memory is swapped, and userfaultfd does
	 * not fill it (EINVAL).  An IOMMU that is not alone in its container
	 * gets mappings at once, as without a registration; one cannot be added
	 * to a container that has mappings made on touch (EBUSY).
	 */
	FASTIOVD_TOUCHMAP = 2,
	/*
	 * For measuring only; the module's parameter allow_table=Y allows it.
	 * DMA mappings take pages as with FASTIOVD_PAGECACHE, but everybody gets
	 * to see them: devices, before they are zeroed, and the VMM and other
	 * processes too.  They are zeroed when a virtual processor of KVM first
	 * touches them, or in the background.  What anybody else has written by
	 * then is lost, other than to the ranges given to FASTIOVD_INSTANT.
	 *
	 * The VM is the process that makes the first DMA mapping.  It has the
	 * memory mapped once, gives its guest all of it for writing, makes its
	 * DMA mappings before the guest runs, and keeps them as long as the
	 * registration.  KVM has to use its TDP MMU and no nested guest; what it
	 * reads and writes for a guest by itself counts as the host's.
	 */
	FASTIOVD_TABLE = 3,
};

/*
 * Zero the memory in the background from the first DMA mapping on, by a thread
 * of the process that made it: its cgroup pays, and it ends with the process.
 */
#define FASTIOVD_BACKGROUND	(1u << 0)

/**
 * struct fastiovd_register - what FASTIOVD_REGISTER takes
 * @size: sizeof(struct fastiovd_register)
 * @policy: one of enum fastiovd_policy
 * @memfd: the memory: a memfd with F_SEAL_SHRINK, of ordinary pages or of huge
 *	pages of the smallest size (2 MiB on x86-64); for FASTIOVD_TABLE and
 *	FASTIOVD_TOUCHMAP with F_SEAL_GROW too, and for the latter an empty one,
 *	not of hugetlbfs
 * @flags: FASTIOVD_BACKGROUND, but with FASTIOVD_TOUCHMAP, or 0
 */
struct fastiovd_register {
	__u32 size;
	__u32 policy;
	__s32 memfd;
	__u32 flags;
};

/**
 * struct fastiovd_stat - what FASTIOVD_STAT returns, in bytes
 * @size: sizeof(struct fastiovd_stat), set by the caller
 * @reserved: 0
 * @bytes: the memory's size
 * @resident: of that, what is allocated
 * @zeroed: of that, what is zeroed (and perhaps written since)
 * @background: of that, what the background thread zeroed
 */
struct fastiovd_stat {
	__u32 size;
	__u32 reserved;
	__u64 bytes;
	__u64 resident;
	__u64 zeroed;
	__u64 background;
};

/*
 * On /dev/fastiovd.  Returns a new descriptor, close-on-exec: the registration.
 *
 *	EFAULT		the argument is not readable
 *	EINVAL		wrong size, unknown policy or flag, or the descriptor is of
 *			no memfd that is sealed, and empty, as it has to be
 *	EBADF		@memfd is no descriptor
 *	EACCES		@memfd is not open for reading and writing
 *	EBUSY		the memory is registered already, or a mapping that is under way
 *			keeps a registration that was closed
 *	EPERM		FASTIOVD_TABLE is not allowed
 *	ENOMEM		also: the host has less memory available than what all of
 *			FASTIOVD_TOUCHMAP may still take, or less in all than
 *			FASTIOVD_TABLE would
 *	EMFILE, ENFILE
 */
#define FASTIOVD_REGISTER	_IOW(0xf1, 0x00, struct fastiovd_register)

/*
 * On a registration.
 *
 *	EFAULT		the argument is not accessible
 *	EINVAL		wrong size or @reserved not 0
 */
#define FASTIOVD_STAT		_IOWR(0xf1, 0x01, struct fastiovd_stat)

/*
 * On a registration: zero what is allocated and not zeroed yet, and return when
 * that is done.  May be called again after EINTR, which a signal causes.
 */
#define FASTIOVD_ZERO		_IO(0xf1, 0x02)

/**
 * struct fastiovd_range - what FASTIOVD_INSTANT takes, in bytes
 * @offset: where it begins in the memory
 * @length: how long it is
 */
struct fastiovd_range {
	__u64 offset;
	__u64 length;
};

/*
 * On a registration with FASTIOVD_TABLE: zero the pages of a range when they are
 * pinned, as a VMM writes there before its guest runs.
 *
 *	EFAULT		the argument is not readable
 *	EINVAL		the range is empty or not in the memory, or the policy is another
 *	EBUSY		the memory is mapped for DMA already
 */
#define FASTIOVD_INSTANT	_IOW(0xf1, 0x03, struct fastiovd_range)

/* Everything else is ENOTTY. */

#endif
