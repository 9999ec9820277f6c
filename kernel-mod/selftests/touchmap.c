// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory that devices get when it is touched. However a page is touched, the device
 * has it from then on, at every address at which it is mapped. The device has no other
 * page, and no page is allocated, pinned or mapped before. QEMU's edu is the device.
 */
#include "edu.h"

#include <linux/userfaultfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define SIZE (32 * MiB)
#define SCRATCH (SIZE - PAGE)	/* a page that is touched, for what the device has read */

static const char *bdf;
static const char *pages;

static struct ram begin(struct vfio *v, bool huge)
{
	struct ram r = ram_new(SIZE, huge);

	r.registration = must(ram_register(r.fd, 0));
	*v = vfio_attach(bdf);
	vfio_open(v, bdf);
	vfio_set_command(v, vfio_command(v) | PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER);
	return r;
}

static void end(struct vfio *v, struct ram *r)
{
	vfio_close(v);
	ram_free(r);
}

/*
 * Whether the device reads that byte all over a page, and the processor then reads what the device
 * writes there.
 */
static bool shared(struct vfio *v, struct ram *r, uint64_t iova, size_t page, uint8_t byte)
{
	bool read, written;

	memset(r->at + SCRATCH, ~byte, PAGE);
	edu_copy(v, iova + SCRATCH, EDU_BUFFER, false);
	edu_copy(v, iova + page, EDU_BUFFER, false);
	edu_copy(v, EDU_BUFFER, iova + SCRATCH, true);
	read = !count_not(r->at + SCRATCH, PAGE, byte);
	memset(r->at + SCRATCH, byte ^ 0xff, PAGE);
	edu_copy(v, iova + SCRATCH, EDU_BUFFER, false);
	edu_copy(v, EDU_BUFFER, iova + page, true);
	written = !count_not(r->at + page, PAGE, byte ^ 0xff);
	return read && written;
}

static void only_what_is_touched(bool huge)
{
	long pins = pinned(), locked = locked_kib();
	struct vfio v;
	struct ram r = begin(&v, huge);
	struct fastiovd_stat stat;

	must(vfio_map(&v, r.at, 0, SIZE));
	stat = ram_stat(&r);
	ksft_test_result(!stat.resident && pinned() == pins,
			 "mapped: %llu bytes resident, %ld pages pinned, %s pages\n",
			 stat.resident, pinned() - pins, pages);
	ksft_test_result(locked_kib() - locked == SIZE / 1024,
			 "all of it counts as locked: %ld KiB, %s pages\n",
			 locked_kib() - locked, pages);
	for (size_t at = 0; at < SIZE / 2; at += 4 * MiB)
		r.at[at] = 1;
	stat = ram_stat(&r);
	ksft_test_result(stat.resident == stat.zeroed &&
			 stat.resident <= (huge ? 8 * MiB : 64 * 1024UL) &&
			 pinned() - pins == (long)(stat.resident / PAGE),
			 "touched: %llu KiB resident, %llu zeroed, %ld pages pinned, %s pages\n",
			 stat.resident / 1024, stat.zeroed / 1024, pinned() - pins, pages);
	must(vfio_unmap(&v, 0, SIZE));
	ksft_test_result(pinned() == pins && locked_kib() == locked,
			 "unmapped: %ld pages pinned, %ld KiB locked, %s pages\n",
			 pinned() - pins, locked_kib() - locked, pages);
	end(&v, &r);
}

static void by_everybody(bool huge)
{
	uint8_t page[PAGE];
	struct iovec here = { page, PAGE }, there;
	struct vfio v;
	struct ram r = begin(&v, huge);
	pid_t child;
	int status;

	memset(r.at, 1, PAGE);
	must(vfio_map(&v, r.at, 0, SIZE));
	ksft_test_result(shared(&v, &r, 0, 0, 1),
			 "written before it was mapped, %s pages\n", pages);
	memset(r.at + 3 * MiB, 2, PAGE);
	ksft_test_result(shared(&v, &r, 0, 3 * MiB, 2),
			 "written by the processor, %s pages\n", pages);
	(void)*(volatile uint8_t *)(r.at + 7 * MiB);
	ksft_test_result(shared(&v, &r, 0, 7 * MiB, 0), "read by the processor, %s pages\n", pages);
	memset(page, 3, PAGE);
	must(pwrite(r.fd, page, PAGE, 11 * MiB));
	ksft_test_result(shared(&v, &r, 0, 11 * MiB, 3),
			 "written with pwrite(), %s pages\n", pages);
	child = must(fork());
	if (!child) {
		uint8_t *own = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, 0);

		if (own == MAP_FAILED)
			_exit(1);
		memset(own + 15 * MiB, 4, PAGE);
		pause();
	}
	for (int i = 0; i < 500 && ram_stat(&r).resident == 0; i++)
		usleep(1000);
	there = (struct iovec){ r.at + 19 * MiB, PAGE };
	must(process_vm_writev(child, &here, 1, &there, 1, 0));
	usleep(300000);
	ksft_test_result(shared(&v, &r, 0, 15 * MiB, 4),
			 "written by a peer with a mapping of its own, %s pages\n", pages);
	ksft_test_result(shared(&v, &r, 0, 19 * MiB, 3),
			 "written through a process, %s pages\n", pages);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	must(fallocate(r.fd, 0, 23 * MiB, PAGE));
	ksft_test_result(shared(&v, &r, 0, 23 * MiB, 0),
			 "allocated with fallocate(), %s pages\n", pages);
	must(vfio_unmap(&v, 0, SIZE));
	memset(r.at + 27 * MiB, 5, PAGE);
	must(vfio_map(&v, r.at, 0, SIZE));
	ksft_test_result(shared(&v, &r, 0, 27 * MiB, 5),
			 "written between two mappings, %s pages\n", pages);
	end(&v, &r);
}

static void at_every_address(bool huge)
{
	const uint64_t other = 128 * MiB;	/* edu reaches 256 MiB */
	struct vfio v;
	struct ram r = begin(&v, huge);

	/* as a PC has it: a hole of 128 KiB in the low memory, which is filled later */
	must(vfio_map(&v, r.at, 0, 640 * 1024));
	must(vfio_map(&v, r.at + 768 * 1024, 768 * 1024, SIZE - 768 * 1024));
	must(vfio_map(&v, r.at, other, SIZE));
	memset(r.at + 512 * 1024, 1, PAGE);
	memset(r.at + 700 * 1024, 2, PAGE);
	memset(r.at + 900 * 1024, 3, PAGE);
	ksft_test_result(shared(&v, &r, 0, 512 * 1024, 1) &&
			 shared(&v, &r, other, 512 * 1024, 0xfe),
			 "at two addresses, %s pages\n", pages);
	ksft_test_result(shared(&v, &r, 0, 900 * 1024, 3) && shared(&v, &r, other, 700 * 1024, 2),
			 "beside a hole, %s pages\n", pages);
	must(vfio_map(&v, r.at + 640 * 1024, 640 * 1024, 128 * 1024));
	ksft_test_result(shared(&v, &r, 0, 700 * 1024, 0xfd),
			 "in the hole when it is filled, %s pages\n", pages);
	must(vfio_unmap(&v, other, SIZE));
	memset(r.at + 9 * MiB, 4, PAGE);
	ksft_test_result(shared(&v, &r, 0, 9 * MiB, 4),
			 "at one address when the other is gone, %s pages\n", pages);
	end(&v, &r);
}

/* The device would not have a huge page that replaces small ones. */
static void not_collapsed(bool huge)
{
	struct vfio v;
	struct ram r = begin(&v, huge);
	bool was_huge;
	int err;

	must(vfio_map(&v, r.at, 0, SIZE));
	memset(r.at + 4 * MiB, 6, PAGE);
	was_huge = ram_stat(&r).resident >= 2 * MiB;
	must(madvise(r.at, SIZE, MADV_HUGEPAGE));	/* now they may be */
	err = madvise(r.at + 4 * MiB, 2 * MiB, MADV_COLLAPSE) ? errno : 0;
	/* MADV_COLLAPSE returns 0 for a page that is huge already */
	ksft_test_result(shared(&v, &r, 0, 4 * MiB, 6) && err == (was_huge ? 0 : EAGAIN),
			 "not collapsed: %s, %s pages\n", err ? strerror(err) : "done", pages);
	(void)*(volatile uint8_t *)(r.at + 5 * MiB);
	ksft_test_result(shared(&v, &r, 0, 5 * MiB, 0),
			 "and the page beside it, %s pages\n", pages);
	end(&v, &r);
}

/* Nor would it have a hole that becomes part of a huge page, when nobody touches the hole. */
static void not_filled_by_a_collapse(void)
{
	struct vfio v;
	struct ram r = begin(&v, SMALL);
	int err;

	memset(r.at + 4 * MiB, 6, PAGE);	/* is not pinned: no device has it */
	must(vfio_map(&v, r.at + 5 * MiB, 5 * MiB, SIZE - 5 * MiB));
	must(madvise(r.at, SIZE, MADV_HUGEPAGE));
	err = madvise(r.at + 4 * MiB, 2 * MiB, MADV_COLLAPSE) ? errno : 0;
	(void)*(volatile uint8_t *)(r.at + 5 * MiB);
	ksft_test_result(shared(&v, &r, 0, 5 * MiB, 0) && err == EINVAL,
			 "not collapsed over a hole that is mapped: %s\n",
			 err ? strerror(err) : "done");
	end(&v, &r);
}

/* Memory that is sealed against writing must not be memory that a device writes. */
static void not_sealed(bool huge)
{
	struct vfio v;
	struct ram r = begin(&v, huge);
	int mapped, unmapped;

	must(vfio_map(&v, r.at, 0, SIZE));
	munmap(r.at, SIZE);
	mapped = fcntl(r.fd, F_ADD_SEALS, F_SEAL_WRITE) ? errno : 0;
	must(vfio_unmap(&v, 0, SIZE));
	unmapped = fcntl(r.fd, F_ADD_SEALS, F_SEAL_WRITE) ? errno : 0;
	ksft_test_result(mapped == EBUSY && !unmapped,
			 "not sealed against writing before it is unmapped, %s pages\n", pages);
	end(&v, &r);
}

/* The device would not have a page that userfaultfd puts there. */
static void not_filled(bool huge)
{
	struct vfio v;
	struct ram r = begin(&v, huge);
	int uffd = must(syscall(SYS_userfaultfd, O_CLOEXEC)), copied, zeroed;
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_MISSING_SHMEM };
	struct uffdio_register all = { .range = { (uintptr_t)r.at, SIZE },
		.mode = UFFDIO_REGISTER_MODE_MISSING };
	static uint8_t source[PAGE] __attribute__((aligned(PAGE)));
	struct uffdio_copy copy = { .dst = (uintptr_t)r.at + 4 * MiB,
		.src = (uintptr_t)source, .len = PAGE };
	struct uffdio_zeropage zero = { .range = { (uintptr_t)r.at + 6 * MiB, PAGE } };

	must(vfio_map(&v, r.at, 0, SIZE));
	must(ioctl(uffd, UFFDIO_API, &api));
	must(ioctl(uffd, UFFDIO_REGISTER, &all));
	copied = ioctl(uffd, UFFDIO_COPY, &copy) ? errno : 0;
	zeroed = ioctl(uffd, UFFDIO_ZEROPAGE, &zero) ? errno : 0;
	close(uffd);
	ksft_test_result(copied == EINVAL && zeroed == EINVAL && !ram_stat(&r).resident,
			 "not filled by userfaultfd: %s, %s, %s pages\n",
			 copied ? strerror(copied) : "filled", zeroed ? strerror(zeroed) : "filled",
			 pages);
	memset(r.at + 4 * MiB, 7, PAGE);
	ksft_test_result(shared(&v, &r, 0, 4 * MiB, 7), "and is touched after that, %s pages\n",
			 pages);
	end(&v, &r);
}

int main(void)
{
	bdf = device_under_test();
	policy = FASTIOVD_TOUCHMAP;
	ksft_print_header();
	ksft_set_plan(2 * 21 + 1);
	for (int huge = 0; huge < 2; huge++) {
		pages = huge ? "huge" : "small";
		poison_free_memory();
		only_what_is_touched(huge);
		by_everybody(huge);
		at_every_address(huge);
		not_collapsed(huge);
		not_sealed(huge);
		not_filled(huge);
	}
	not_filled_by_a_collapse();
	ksft_finished();
}
