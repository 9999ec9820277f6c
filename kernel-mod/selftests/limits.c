// SPDX-License-Identifier: GPL-2.0-only
/*
 * A VMM without privilege may lock so much memory and no more. What it maps beyond that is refused,
 * and nothing of it stays pinned, locked or allocated; what it may have it gets.
 */
#include "vfio.h"

#include <grp.h>
#include <sys/resource.h>

#define SIZE (32 * MiB)

static const char *bdf;

struct outcome {
	int error;
	long locked, left;	/* KiB, while it is mapped and afterwards */
};

static void unprivileged(size_t limit)
{
	must(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){ limit, limit }));
	must(setgroups(0, NULL));
	must(setgid(1000));
	must(setuid(1000));
}

/* Maps that much as a user who may lock so much. */
static struct outcome map_with(struct vfio *v, struct ram *r, size_t limit, size_t size)
{
	struct outcome *shared = must(mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
					   MAP_SHARED | MAP_ANONYMOUS, -1, 0)), o;
	pid_t child = must(fork());

	if (!child) {
		unprivileged(limit);
		shared->error = vfio_map(v, r->at, 0, size) ? errno : 0;
		shared->locked = locked_kib();
		if (!shared->error)
			must(vfio_unmap(v, 0, size));
		shared->left = locked_kib();
		_exit(0);
	}
	must(waitpid(child, NULL, 0));
	o = *shared;
	munmap(shared, PAGE);
	return o;
}

enum { EAGER = 0 };

static void limited(uint32_t how, enum pages pages)
{
	static const char *const names[] = { [EAGER] = "eager", [FASTIOVD_PAGECACHE] = "deferred",
		[FASTIOVD_TOUCHMAP] = "on touch" };
	long before = pinned(), after;
	struct ram r = ram_new(SIZE, pages);
	struct vfio v = vfio_attach(bdf);
	struct fastiovd_stat stat = {};
	struct outcome o;
	bool none;

	policy = how;
	if (how)
		r.registration = must(ram_register(r.fd, 0));
	o = map_with(&v, &r, SIZE - PAGE, SIZE);
	after = pinned();
	if (how)
		stat = ram_stat(&r);
	/* an iommufd counts what it has pinned, and a container's own pinning by pages does */
	none = under_iommufd || !how || !stat.resident;
	ksft_test_result(o.error == ENOMEM && !o.left && after == before && none,
			 "a page too much, %s, %s: %s; %ld KiB stay locked, %ld pages pinned, %llu KiB allocated\n",
			 names[how], pages_are[pages], strerror(o.error), o.left, after - before,
			 stat.resident / 1024);
	o = map_with(&v, &r, SIZE, SIZE);
	after = pinned();
	ksft_test_result(!o.error && o.locked == SIZE / 1024 && !o.left && after == before,
			 "just enough, %s, %s: %s; %ld KiB were locked, %ld stay, %ld pages pinned\n",
			 names[how], pages_are[pages], o.error ? strerror(o.error) : "mapped",
			 o.locked, o.left, after - before);
	vfio_close(&v);
	ram_free(&r);
}

/* Who may have no more threads zeroes by itself, and its device masters the bus afterwards. */
static void masters_at_once(void)
{
	struct ram r = ram_new(SIZE, SMALL);
	struct vfio v = vfio_attach(bdf);
	struct fastiovd_stat stat;
	int status;
	pid_t child;

	policy = FASTIOVD_PAGECACHE;
	r.registration = must(ram_register(r.fd, 0));
	must(vfio_map(&v, r.at, 0, SIZE));
	vfio_open(&v, bdf);
	deferred(&r, SIZE);
	child = must(fork());
	if (!child) {
		unprivileged(0);
		must(setrlimit(RLIMIT_NPROC, &(struct rlimit){ 0, 0 }));
		vfio_set_command(&v, PCI_COMMAND_MASTER);
		_exit(!masters(bdf));
	}
	must(waitpid(child, &status, 0));
	stat = ram_stat(&r);
	ksft_test_result(stat.zeroed == SIZE && !status,
			 "no thread is to be had: the write zeroes %llu MiB, and the device %s\n",
			 stat.zeroed / MiB,
			 status ? "does not master the bus" : "masters the bus");
	vfio_close(&v);
	ram_free(&r);
}

int main(void)
{
	bdf = device_under_test();
	ksft_print_header();
	ksft_set_plan(2 * (4 + 4 + 3) + 1);
	for (enum pages pages = SMALL; pages <= RESERVED; pages++) {
		limited(EAGER, pages);
		limited(FASTIOVD_PAGECACHE, pages);
		if (pages != RESERVED)
			limited(FASTIOVD_TOUCHMAP, pages);
	}
	masters_at_once();
	ksft_finished();
}
